"""The newest of something, never a mixture, whoever dies."""

import random
import time

import numpy as np
import pytest
from apart import KILLED, Deadly, apart, dies, full_of, kill, start, whole

from covey.errors import UserError
from covey.memory import snapshot as snapshot_module
from covey.memory.block import Block
from covey.memory.snapshot import COPIES, Snapshot, layout

FIELDS = {"w": ((3,), "f4"), "n": ((), "i8")}
WIDE = {"a": ((40_000,), "i8"), "b": ((40_000,), "i8")}


def pair(fields=FIELDS):
    block = Block(layout(fields))
    return Snapshot(block.arrays, "weights"), Snapshot(block.arrays, "weights")


def values(number):
    return {"w": np.full(3, number, np.float32), "n": np.array(number)}


def wide(number):
    return {"a": full_of(number, 40_000), "b": full_of(number, 40_000)}


def test_the_newest_is_read_once():
    writer, reader = pair()
    out = values(0)
    assert (reader.version, reader.read(out)) == (0, None)
    for version in range(1, 11):
        assert writer.write(values(7 * version)) == version
        assert reader.read(out) == version == reader.version == reader.seen
        assert (out["w"].tolist(), int(out["n"])) == ([7 * version] * 3, 7 * version)
        assert reader.read(out) is None


def test_versions_in_between_are_passed_over():
    writer, reader = pair()
    for number in range(100):
        writer.write(values(number))
    out = values(0)
    assert (reader.read(out), int(out["n"])) == (100, 99)
    assert reader.retries == 0


def test_a_field_may_have_any_name():
    writer, reader = pair({"version": ((), "i8"), "copy.version": ((2,), "f4")})
    writer.write({"version": np.array(5), "copy.version": np.ones(2, np.float32)})
    out = {"version": np.array(0), "copy.version": np.zeros(2, np.float32)}
    assert reader.read(out) == 1
    assert (int(out["version"]), out["copy.version"].tolist()) == (5, [1, 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"w": np.zeros(4, np.float32)}, r"'w' holds float32\[3\] but was given float32\[4\]"),
        ({"w": np.zeros((), np.float32)}, r"'w' holds float32\[3\] but was given float32\[\]"),
        ({"w": np.zeros(3)}, r"'w' .* given float64\[3\]"),
        ({"v": np.zeros(3)}, r"'v' holds nothing"),
    ],
)
def test_another_form_is_refused_at_the_writer(change, said):
    writer, reader = pair()
    with pytest.raises(UserError, match=f"weights: {said}"):
        writer.write({**values(1), **change})
    assert reader.version == 0


class Meanwhile(dict):
    """What is read into; while it is, this many new versions are written, `times` times."""

    def __init__(self, out, writer, versions, times):
        super().__init__(out)
        self.writer, self.versions, self.times = writer, versions, times

    def __getitem__(self, key):
        if key == "n" and self.times:
            self.times -= 1
            for _ in range(self.versions):
                self.writer.write(values(self.writer.version + 1))
        return super().__getitem__(key)


@pytest.mark.parametrize(("versions", "retries"), [(1, 0), (2, 0), (3, 5), (4, 5), (9, 5)])
def test_a_copy_that_may_have_been_written_again_is_read_again(versions, retries):
    writer, reader = pair()
    writer.write(values(1))
    out = Meanwhile(values(0), writer, versions, times=5)
    version = reader.read(out)
    assert reader.retries == retries
    assert out["w"].tolist() == [version] * 3
    assert int(out["n"]) == version
    assert COPIES == 4


def test_a_writer_that_is_too_fast_is_an_error(monkeypatch):
    monkeypatch.setattr(snapshot_module, "MOST_TRIES", 10)
    writer, reader = pair()
    writer.write(values(1))
    with pytest.raises(UserError, match="weights: written faster than they can be read"):
        reader.read(Meanwhile(values(0), writer, 3, times=1000))
    assert reader.retries == 10


def killed_writes(accesses):
    """The writer dies at its n-th look at the values; its successor goes on."""
    writer, reader = pair()
    writer.write(values(1))
    for at in range(1, accesses + 1):
        assert dies(writer.write, Deadly(values(99), at)) == KILLED
        out = values(0)
        assert reader.read(out) == (1 if at == 1 else None)
        assert reader.version == 1
    assert dies(writer.write, Deadly(values(2), accesses + 1)) == 0
    return reader.read(out), out["w"].tolist(), int(out["n"])


def test_what_a_killed_writer_had_half_written_was_never_there():
    assert apart(killed_writes, 6) == [2, [2.0] * 3, 2]


def killed_often(times):
    """Writers die at any time under a reader at full speed."""
    writer, reader = pair(WIDE)
    rng, out, seen = random.Random(3), wide(0), [0]

    def write():
        while True:
            writer.write(wide(writer.version + 1))

    for _ in range(times):
        pid = start(write)
        until = time.monotonic() + rng.uniform(0.002, 0.008)
        while time.monotonic() < until:
            version = reader.read(out)
            if version is not None:
                seen.append(version)
                assert whole(out["a"]) == whole(out["b"]) == version
        kill(pid)
    assert seen == sorted(set(seen))
    return len(seen), writer.version


def test_a_version_is_never_mixed_and_never_goes_back_while_writers_are_killed():
    read, written = apart(killed_often, 60)
    assert 30 < read <= written + 1


def killed_readers(times):
    """Readers die while they read; the writer never notices."""
    writer, reader = pair(WIDE)
    writer.write(wide(1))

    def read():
        out = wide(0)
        while True:
            reader.seen = 0
            reader.read(out)

    for _ in range(times):
        pid = start(read)
        time.sleep(0.003)
        kill(pid)
        writer.write(wide(writer.version + 1))
    return writer.version


def test_readers_may_die():
    assert apart(killed_readers, 20) == 21
