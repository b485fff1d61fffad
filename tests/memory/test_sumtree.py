"""The tree against a running sum, and the compiled one against numpy's, bit for bit."""

import shutil

import numpy as np
import pytest

from covey.memory import sumtree
from covey.memory.sumtree import SumTree, compiled

SIZES = [1, 2, 15, 16, 17, 255, 257, 5000]
KINDS = [None] if compiled() is None else [None, compiled()]
each_kind = pytest.mark.parametrize("library", KINDS, ids=["numpy", "compiled"][: len(KINDS)])


def filled(size, library, seed=0, empty=0.3):
    rng = np.random.default_rng(seed)
    tree = SumTree(size, library)
    tree.set(np.arange(size), np.where(rng.random(size) < empty, 0, rng.exponential(size=size)))
    if tree.total == 0:
        tree.set(np.array([0]), np.array([1.0]))
    return tree, rng


def test_it_is_compiled_where_there_is_a_compiler():
    assert (compiled() is not None) == (shutil.which("cc") is not None)


def test_without_the_library_it_is_numpy(monkeypatch, tmp_path):
    monkeypatch.setattr(sumtree, "COMPILED", tmp_path / "none.so")
    assert compiled() is None


@each_kind
@pytest.mark.parametrize("size", SIZES)
def test_it_finds_where_the_running_sum_goes_over(size, library):
    tree, rng = filled(size, library)
    target_N = rng.random(1000) * tree.total
    edges = tree.leaf_N.cumsum()
    found_N = tree.find(target_N)
    assert (tree.leaf_N[found_N] > 0).all()
    near = 1e-9 * tree.total  # sums of sixteen round otherwise than one long sum
    assert (target_N < edges[found_N] + near).all()
    assert (target_N >= edges[found_N] - tree.leaf_N[found_N] - near).all()
    assert tree.total == pytest.approx(tree.leaf_N.sum(), rel=1e-12)
    tree.check()


@each_kind
def test_the_ends_are_never_passed(library):
    tree = SumTree(100, library)
    tree.set(np.array([3, 40, 77]), np.array([0.1, 0.2, 0.3]))
    target_N = np.array([0.0, np.nextafter(tree.total, 0), tree.total, 2 * tree.total])
    assert tree.find(target_N).tolist() == [3, 77, 77, 77]


@each_kind
def test_a_leaf_named_twice_takes_the_last(library):
    tree = SumTree(50, library)
    tree.set(np.array([7, 7, 20, 7]), np.array([1.0, 2.0, 5.0, 3.0]))
    assert (tree.leaf_N[7], tree.total) == (3.0, 8.0)
    tree.check()


@each_kind
def test_nothing_changes_nothing(library):
    tree, _ = filled(30, library)
    total = tree.total
    tree.set(np.zeros(0, np.int64), np.zeros(0))
    assert tree.find(np.zeros(0)).tolist() == []
    assert tree.total == total


@each_kind
def test_sums_do_not_drift(library):
    tree, rng = filled(3000, library)
    for _ in range(300):
        weight_N = rng.exponential(size=64) * 10.0 ** rng.integers(-6, 7)
        tree.set(rng.integers(3000, size=64), weight_N)
    tree.check()
    tree.set(np.arange(3000), np.zeros(3000))
    assert tree.total == 0.0


@pytest.mark.skipif(compiled() is None, reason="there is no compiler here")
@pytest.mark.parametrize("size", SIZES)
def test_both_give_the_same_bits(size):
    (one, rng), (other, _) = filled(size, None), filled(size, compiled())
    for _ in range(30):
        index_N = rng.integers(size, size=40)
        weight_N = rng.exponential(size=40) * (rng.random(40) > 0.2)
        one.set(index_N, weight_N)
        other.set(index_N, weight_N)
        assert one.total == other.total
        if one.total:
            target_N = rng.random(200) * one.total
            np.testing.assert_array_equal(one.find(target_N), other.find(target_N))
    for mine, theirs in zip(one._levels, other._levels, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("what", ["weight", "sum"])
def test_a_wrong_node_is_found(what):
    tree, _ = filled(300, None)
    tree._levels[-1 if what == "weight" else 0][5] = -1.0
    with pytest.raises(AssertionError):
        tree.check()
