import gymnasium as gym
import numpy as np
import pytest
from badenvs import Counting, Sight
from gymnasium.vector import SyncVectorEnv

from covey.attributes import attributes, set_attributes, suffice


class Thing:
    def __init__(self):
        self.flag, self.count, self.share, self.name, self.none = True, 3, 0.5, "x", None
        self.rng, self.array = np.random.default_rng(1), np.arange(3)
        self.hidden, self.objects = [1, 2], np.array([None, {}], object)


def test_plain_attributes_are_taken_and_others_left():
    found = attributes(Thing())
    assert set(found) == {"flag", "count", "share", "name", "none", "rng", "array"}
    assert found["rng"] == {"rng": np.random.default_rng(1).bit_generator.state}


def test_what_was_taken_is_put_back_into_the_same_generator():
    thing = Thing()
    saved, rng = attributes(thing), thing.rng
    drawn = thing.rng.random(4)
    thing.count, thing.name, thing.none = 9, "y", 1
    thing.array[:] = 7
    set_attributes(thing, saved)
    assert (thing.count, thing.name, thing.none, thing.array.tolist()) == (3, "x", None, [0, 1, 2])
    assert thing.rng is rng
    assert (thing.rng.random(4) == drawn).all()


def test_what_was_taken_is_a_copy_both_ways():
    thing = Thing()
    saved = attributes(thing)
    thing.array += 1
    assert saved["array"].tolist() == [0, 1, 2]
    set_attributes(thing, saved)
    thing.array += 1
    assert saved["array"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "enough"),
    [
        (lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"), True),
        (lambda: SyncVectorEnv([Counting] * 2), False),  # the state is inside the environments
        (lambda: SyncVectorEnv([Sight] * 2), False),
    ],
)
def test_whether_attributes_are_enough_is_tried(make, enough):
    env = make()
    assert suffice(env, [np.array([0, 1])] * 60) is enough
    env.close()
