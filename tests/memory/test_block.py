"""Named arrays over anonymous memory, and the lock that a death gives back."""

import os
import random
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from apart import KILLED, all_end, apart, dies, end, start

from covey.errors import UserError
from covey.memory import block as block_module
from covey.memory.block import (
    LINE,
    Block,
    Word,
    check,
    fence,
    layout_of,
    new_memory,
    signature,
    size_of,
)  # fmt: skip

DESCRIPTORS = Path("/proc/self/fd")
RECORD = np.dtype([("x", "f4", (2,)), ("n", "u1")])
LAYOUT = {
    "byte": ((1,), "u1"),
    "number": ((), "f8"),
    "none": ((0, 3), "i4"),
    "table": ((5, 7), "f4"),
    "records": ((3,), RECORD),
    "last": ((2, 8), "i8"),
}


def test_arrays_have_their_form_begin_with_zeros_and_share_no_line():
    block = Block(LAYOUT)
    for name, (shape, dtype) in LAYOUT.items():
        assert (block[name].shape, block[name].dtype) == (shape, np.dtype(dtype))
        assert not block[name].tobytes().strip(b"\0")
    spans = sorted((a.ctypes.data, a.nbytes) for a in block.arrays.values() if a.size)
    assert all(start % LINE == 0 for start, _ in spans)
    assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
    assert block.size == sum(-(-a.nbytes // LINE) * LINE for a in block.arrays.values())
    block.close()


def test_what_one_writes_another_reads():
    one = Block(LAYOUT)
    two = Block(LAYOUT, os.dup(one.fd))
    one["table"][:] = np.arange(35).reshape(5, 7)
    two["records"]["x"][1] = 3, 4
    assert two["table"].sum() == 595
    assert one["records"]["x"].tolist() == [[0, 0], [3, 4], [0, 0]]
    assert one["last"].sum() == 0
    one.close()
    two.close()


def test_a_closed_block_keeps_what_is_still_used_and_no_descriptor():
    before = len(list(DESCRIPTORS.iterdir()))
    block = Block(LAYOUT)
    assert (DESCRIPTORS / str(block.fd)).readlink().name.startswith("memfd:covey")
    table = block["table"]
    block.close()
    block.close()
    table += 1
    assert table.sum() == 35
    del table
    assert len(list(DESCRIPTORS.iterdir())) == before


def test_nothing_is_left_in_a_folder():
    before = set(Path("/dev/shm").iterdir())
    block = Block(LAYOUT)
    assert set(Path("/dev/shm").iterdir()) == before
    block.close()


@pytest.mark.parametrize("layout", [LAYOUT, {}, {"empty": ((0,), "f4")}])
def test_a_signature_brings_the_layout_back(layout):
    again = layout_of(signature(layout))
    assert signature(again) == signature(layout)
    assert size_of(again) == size_of(layout) >= LINE
    Block(again).close()


def test_memory_that_is_too_small_is_an_error():
    fd = new_memory(8)
    with pytest.raises(ValueError, match="mmap length is greater"):
        Block(LAYOUT, fd)
    os.close(fd)


X, N = np.zeros(2, "f4"), np.zeros((), "i8")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"x": X.astype("f8"), "n": N}, r"'x' holds float32\[2\] .* float64\[2\]"),
        ({"x": np.zeros(3, "f4"), "n": N}, r"'x' holds float32\[2\] .* float32\[3\]"),
        ({"x": X}, r"'n' holds int64\[\] but was given nothing"),
        ({"x": X, "n": N, "y": np.ones(1)}, "'y' holds nothing but"),
    ],
)
def test_an_item_of_another_form_is_refused_by_name(item, said):
    forms = {"x": (np.dtype("f4"), (2,)), "n": (np.dtype("i8"), ())}
    check("link", forms, {"x": np.zeros(2, "f4"), "n": np.array(1)})
    with pytest.raises(UserError, match=f"^link: {said}"):
        check("link", forms, item)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_fence_lets_everybody_pass(ordered, monkeypatch):
    monkeypatch.setattr(block_module, "_ORDERED", ordered)
    fence()
    fence()


def test_a_word_holds_64_bits():
    cell = np.zeros(8, np.int64)
    word = Word(cell[3:])
    for value in (1, -1, 2**63 - 1, -(2**63)):
        word.value = value
        assert word.value == cell[3] == value
    assert cell.tolist() == [0, 0, 0, -(2**63), 0, 0, 0, 0]


def words_are_whole():
    block = Block({"word": ((8,), "i8")})
    word, patterns = Word(block["word"]), (0x0123456789ABCDEF, -2)

    def flip():
        while True:
            for pattern in patterns:
                word.value = pattern

    word.value = patterns[0]
    pid, seen, deadline = start(flip), set(), time.monotonic() + 20
    while len(seen) < 2 and time.monotonic() < deadline:  # it takes a while to begin
        seen.add(word.value)
    seen |= {word.value for _ in range(200_000)}
    os.kill(pid, signal.SIGKILL)
    end(pid)
    return sorted(seen) == sorted(patterns)


def test_a_word_is_never_torn():
    assert apart(words_are_whole)


def lock_excludes(processes, times):
    block = Block({"n": ((1,), "i8")})

    def add():
        for _ in range(times):
            with block.locked():
                seen = int(block["n"][0])
                time.sleep(1e-5)
                block["n"][0] = seen + 1

    all_end([start(add) for _ in range(processes)])
    return int(block["n"][0])


def test_a_lock_lets_one_process_in():
    assert apart(lock_excludes, 3, 100) == 300


def test_a_lock_lets_one_thread_in():
    block = Block({"n": ((1,), "i8")})

    def add():
        for _ in range(100):
            with block.locked():
                seen = int(block["n"][0])
                time.sleep(1e-5)
                block["n"][0] = seen + 1

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert block["n"][0] == 300
    block.close()


def locks_of_the_dead(times):
    block, rng = Block({"n": ((1,), "i8")}), random.Random(1)

    def hold():
        while True:
            with block.locked():
                block["n"][0] += 1

    slowest = 0.0
    for _ in range(times):
        pids = [start(hold) for _ in range(2)]
        time.sleep(rng.uniform(0.002, 0.006))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with block.locked():
            slowest = max(slowest, time.monotonic() - began)
        assert [end(pid) for pid in pids] == [KILLED] * 2
    return slowest, int(block["n"][0])


def test_whoever_is_killed_in_a_lock_gives_it_back():
    slowest, times = apart(locks_of_the_dead, 30)
    assert slowest < 1
    assert times > 100


def killed_inside():
    block = Block({"n": ((1,), "i8")})

    def die():
        with block.locked():
            os.kill(os.getpid(), signal.SIGKILL)

    assert dies(die) == KILLED
    began = time.monotonic()
    with block.locked():
        return time.monotonic() - began


def test_a_lock_is_free_at_once_after_its_holder_was_killed():
    assert apart(killed_inside) < 1  # of 60 s


def lock_kept():
    block = Block({"n": ((1,), "i8")})
    block_module.LOCK_SECONDS = 0.05

    def keep():
        with block.locked():
            block["n"][0] = 1
            time.sleep(30)

    pid = start(keep)
    while not block["n"][0]:
        time.sleep(0.001)
    try:
        with block.locked():
            return "got it"
    except UserError as error:
        return str(error)
    finally:
        os.kill(pid, signal.SIGKILL)
        end(pid)


def test_a_lock_that_is_kept_is_an_error_with_a_deadline():
    assert apart(lock_kept) == "a lock was not given back in 0.05 s."


def test_a_lock_is_given_back_after_an_exception():
    block = Block({"n": ((1,), "i8")})
    with pytest.raises(KeyError), block.locked():
        raise KeyError
    with block.locked():
        pass
    block.close()
