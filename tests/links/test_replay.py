"""A ring of rows, drawn uniformly, saved and restored."""

import copy

import numpy as np
import pytest

from covey import checkpoint
from covey.errors import UserError
from covey.links.replay import Replay

RECORD = np.dtype([("x", np.float32, (2,)), ("n", np.int64)])


def replay(capacity=10, seed=0, save_rows=True):
    return Replay(capacity, np.random.default_rng(seed), save_rows)


def rows(*numbers):
    x = np.array(numbers, np.float32)
    return {"x": np.stack([x, -x], axis=1), "n": np.array(numbers, np.int64)}


def kept(r):
    return sorted(r.columns["n"][: len(r)].tolist())


def test_it_fills_and_then_the_oldest_go():
    r = replay(4)
    assert len(r) == 0
    assert r.add(rows(0, 1, 2)) == 3
    assert (len(r), kept(r)) == (3, [0, 1, 2])
    r.add(rows(3, 4))
    assert (len(r), kept(r)) == (4, [1, 2, 3, 4])
    r.add(rows(5))
    assert (r.added, kept(r)) == (6, [2, 3, 4, 5])


@pytest.mark.parametrize("before", [0, 1, 3, 7])
@pytest.mark.parametrize("num", [4, 5, 8, 11])
def test_more_than_fit_leaves_the_newest(before, num):
    r = replay(4)
    r.add(rows(*range(before)))
    assert r.add(rows(*range(100, 100 + num))) == num
    assert kept(r) == list(range(96 + num, 100 + num))
    r.add(rows(-1))
    assert kept(r) == [-1, *range(97 + num, 100 + num)]


def test_no_rows_change_nothing():
    r = replay()
    r.add(rows(1, 2))
    assert r.add(rows()) == 0
    assert kept(r) == [1, 2]


@pytest.mark.parametrize("filled", [7, 10, 33])
def test_every_row_is_as_likely(filled):
    r = replay()
    r.add(rows(*range(filled)))
    drawn = r.sample(50_000)["n"]
    seen = np.bincount(drawn, minlength=filled)[-len(r) :]
    wanted = 50_000 / len(r)
    assert ((seen - wanted) ** 2 / wanted).sum() < 27.9  # chi-square of 9, one in a thousand
    assert seen.sum() == r.drawn == 50_000


def test_columns_are_drawn_together_and_as_copies():
    r = replay()
    r.add(rows(*range(10)))
    batch = r.sample(100)
    np.testing.assert_array_equal(batch["x"], np.stack([batch["n"], -batch["n"]], axis=1))
    assert (batch["x"].dtype, batch["n"].dtype) == (np.float32, np.int64)
    batch["n"][:] = 99
    assert kept(r) == list(range(10))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, r"'x' holds float32\[2\] .* given float32\[3\]"),
        ({"x": np.zeros(2, np.float32)}, "column 'x'"),
        ({"x": np.zeros((2, 2), np.float64)}, r"'x' holds float32\[2\] .* given float64\[2\]"),
        ({"n": np.zeros(3, np.int64)}, "column 'n'"),
        ({"n": None}, "column 'n' .* given nothing"),
        ({"new": np.zeros(2)}, "column 'new'"),
    ],
)
def test_other_columns_are_refused_by_name(change, sentence):
    r = replay()
    r.add(rows(1, 2))
    changed = {k: v for k, v in {**rows(3, 4), **change}.items() if v is not None}
    with pytest.raises(UserError, match=sentence):
        r.add(changed)
    assert (r.added, kept(r)) == (2, [1, 2])


def test_the_first_rows_must_be_of_one_length():
    with pytest.raises(UserError, match="column 'n'"):
        replay().add({"x": np.zeros((2, 2)), "n": np.zeros(3)})


@pytest.mark.parametrize("filled", [6, 10, 23])
def test_a_saved_replay_goes_on_as_if_nothing_had_happened(filled, tmp_path):
    first, second = replay(seed=5), replay(seed=99)
    first.add(rows(*range(filled)))
    first.sample(3)
    path = checkpoint.save(tmp_path, 1, first.state(), {})
    assert second.restore(checkpoint.load(path).tree)
    assert (second.added, second.drawn) == (filled, 3)
    for r in (first, second):
        r.add(rows(50, 51, 52))
    for _ in range(3):
        a, b = first.sample(20), second.sample(20)
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_an_empty_replay_is_restored():
    r = replay()
    assert r.restore(replay(seed=3).state())
    assert len(r) == 0


def test_without_rows_filling_begins_anew():
    first, second = replay(save_rows=False), replay(seed=9)
    first.add(rows(1, 2, 3))
    state = copy.deepcopy(first.state())
    assert all(len(column) == 0 for column in state["columns"].values())
    assert second.restore(state) is False
    assert len(second) == 0
    second.add(rows(7))
    assert second.sample(2)["n"].tolist() == [7, 7]


def test_another_capacity_is_not_the_same_ring():
    first = replay(10)
    first.add(rows(*range(10)))
    assert replay(5).restore(first.state()) is False


def test_records(tmp_path):
    r = replay(3)
    obs = np.zeros(5, RECORD)
    obs["x"], obs["n"] = np.arange(10).reshape(5, 2), np.arange(5)
    r.add({"obs": obs})
    batch = r.sample(50)["obs"]
    assert batch.dtype == RECORD
    assert set(batch["n"].tolist()) == {2, 3, 4}
    np.testing.assert_array_equal(batch["x"][:, 0], 2 * batch["n"])
    again = replay(3)
    assert again.restore(checkpoint.load(checkpoint.save(tmp_path, 1, r.state(), {})).tree)
    np.testing.assert_array_equal(again.sample(9)["obs"], r.sample(9)["obs"])
