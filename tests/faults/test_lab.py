"""The laboratory itself: schedules replay, and the checker finds what it must find."""

import numpy as np
import pytest
from lab import KINDS, ROWS, History, Signed, recoveries, schedule, sign, verdict


def rows(*keys, actor=0):
    plain = np.array([(actor, *key) for key in keys], np.int64)
    return np.concatenate([plain, sign(plain)[:, None]], axis=1)


def wrong(*parts, actors=1):
    """What the checker says of (actor, keys, ends) that came in this order."""
    history = History(actors)
    for actor, keys, ends in parts:
        history.add(actor, rows(*keys, actor=actor), np.array(ends))
    return {what: num for what, num in history.wrong.items() if num}


def test_two_schedules_of_one_seed_are_equal_and_of_two_seeds_are_not():
    assert schedule(7, 200, 4) == schedule(7, 200, 4)
    assert schedule(7, 200, 4) != schedule(8, 200, 4)


def test_a_schedule_has_every_kind_and_every_actor():
    faults = schedule(3, 100, 4)
    assert {f.kind for f in faults} == set(KINDS)
    assert {f.actor for f in faults} == set(range(4))
    assert {f.kind for f in schedule(4, len(KINDS), 4)} == set(KINDS)
    assert 0.05 < np.mean([f.wait for f in faults]) < 0.2


def test_a_whole_history_has_nothing_wrong():
    history = [
        (0, [(0, 0, 0), (0, 0, 1), (0, 0, 2)], [False, False, True]),
        (1, [(0, 0, 0)], [False]),
        (0, [(0, 1, 0), (0, 1, 1)], [False, False]),
        (1, [(3, 0, 0), (3, 0, 1)], [False, True]),  # after three deaths
    ]
    assert wrong(*history, actors=2) == {}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([(0, 0, 0)], "doubled or late"),
        ([(0, 0, 2)], "missing before"),  # a step
        ([(0, 1, 0)], "missing before"),  # the end of an episode
        ([(1, 0, 1)], "missing before"),  # the beginning of a life
        ([(1, 1, 0)], "missing before"),
    ],
)
def test_a_bad_history_is_named(second, said):
    assert wrong((0, [(0, 0, 0)], [False]), (0, second, [False])) == {said: 1}


def test_an_old_generation_is_late():
    first = (0, [(1, 0, 0)], [False])
    assert wrong(first, (0, [(0, 0, 1)], [False])) == {"doubled or late": 1}


def test_an_episode_that_was_not_over_may_not_be_followed_by_another():
    first = (0, [(0, 0, 0)], [True])
    assert wrong(first, (0, [(0, 0, 1)], [False])) == {"missing before": 1}


def test_torn_rows_and_rows_of_another_are_counted():
    history = History(2)
    whole = rows((0, 0, 0), (0, 0, 1))
    whole[1, 2] += 1 << 20
    history.add(1, whole, np.array([False, False]))
    assert history.wrong["torn"] == 1
    assert history.wrong["of another"] == 2


def test_every_observation_is_signed():
    order = np.zeros(8, np.int64)
    env = Signed(3, 2, order, step_seconds=0)
    obs, _ = env.reset(seed=1)
    seen, over = [obs], [False]
    for _ in range(60):
        obs, reward, terminated, truncated, _ = env.step(0)
        assert not truncated
        assert reward == obs[3]
        if terminated:
            obs, _ = env.reset()
        seen.append(obs)
        over[-1] = terminated
        over.append(False)
    history = History(4)
    history.last[3] = (1, 7, 7)
    history.add(3, np.array(seen), np.array(over))
    assert not any(history.wrong.values())
    assert history.last[3][0] == 2


def test_an_order_is_obeyed_once():
    order = np.zeros(8, np.int64)
    env = Signed(0, 0, order)
    env.reset(seed=1)
    order[0] = KINDS.index("raise") + 1
    with pytest.raises(RuntimeError, match="ordered to"):
        env.step(0)
    assert order[0] == 0
    env.step(0)


def found(**changes):
    good = {
        "done": [("kill", 0, 0, 0.1), ("slow reset", 0, 1, 1.2)], "lost": [], "wrong": {"torn": 0},
        "rows": [ROWS * 5], "written": 5, "taken": 5, "depth": 0, "dropped": 0,
        "stepped": [ROWS * 6],
    }  # fmt: skip
    return {**good, **changes}


DIED = ("died", {"member": "actor 0", "generation": 0, "cause": "killed by signal 9 (...)",
                 "replaced": True})  # fmt: skip


def test_a_good_verdict():
    verdict(found(), [DIED], 2)
    assert recoveries(found(), "kill", "slow reset") == [0.1, 1.2]


@pytest.mark.parametrize(
    "bad",
    [
        {"lost": [("kill", 0, 0)]}, {"wrong": {"torn": 1}}, {"written": 6}, {"depth": 1},
        {"dropped": 1}, {"stepped": [ROWS * 8]}, {"stepped": [ROWS * 4]}, {"rows": [ROWS * 5 + 1]},
        {"done": [("kill", 0, 0, 0.1)]}, {"done": [("stop", 0, 0, 0.1), ("slow reset", 0, 1, 1.2)]},
        {"done": [("slow reset", 0, 0, 0.1), ("slow reset", 0, 1, 1.2)]},
    ],
)  # fmt: skip
def test_a_bad_verdict(bad):
    with pytest.raises(AssertionError):
        verdict(found(**bad), [DIED], 2)


def test_a_fault_without_its_death_is_found():
    with pytest.raises(KeyError):
        verdict(found(), [], 2)
