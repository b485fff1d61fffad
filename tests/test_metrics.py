"""Numbers on disk, read back by hand."""

import json
import math
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event

from covey.envs import Episode
from covey.metrics import MetricsFile, Returns, TensorBoard, read_metrics


def test_returns_are_of_the_newest_episodes():
    returns = Returns(window=3)
    assert returns.summary() == {"episodes": 0}
    returns.add([Episode(100.0, 9)])
    returns.add([Episode(1.0, 1), Episode(2.0, 2), Episode(6.0, 6)])
    assert returns.summary() == {
        "episodes": 4, "return_mean": 3.0, "length_mean": 3.0,
        "return_std": pytest.approx(math.sqrt(14 / 3)),
    }  # fmt: skip


def test_more_episodes_at_once_than_the_window_holds():
    returns = Returns(window=2)
    returns.add([Episode(float(i), i) for i in range(10)])
    assert (returns.summary()["return_mean"], returns.count) == (8.5, 10)


def test_returns_go_through_json_and_back():
    one, two = Returns(), Returns()
    one.add([Episode(1.5, 2), Episode(-3.0, 4)])
    two.restore(json.loads(json.dumps(one.state())))
    assert (two.newest, two.count, two.summary()) == (one.newest, 2, one.summary())


def written(path, *rows, **more):
    file = MetricsFile(path, **more)
    for row in rows:
        file.write(row)
    file.close()


def test_a_row_is_a_line_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write({"env_steps": 1, "loss": 0.1})
    assert read_metrics(path) == [{"env_steps": 1, "loss": 0.1}]  # before it is closed
    file.close()


def test_numbers_that_are_none_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(
        path, {"env_steps": 1, "a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 2.0}
    )
    assert path.read_text() == '{"env_steps": 1, "a": null, "b": null, "c": null, "d": 2.0}\n'


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_cut_last_line_is_left_out(cut, tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, {"env_steps": 1}, {"env_steps": 2, "a": 3.25})
    text = path.read_bytes()
    path.write_bytes(text[:-cut])
    whole = [{"env_steps": 1}] + [{"env_steps": 2, "a": 3.25}] * (cut == 1)
    assert read_metrics(path) == whole


def test_going_on_drops_what_came_after_the_checkpoint_and_a_cut_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, *({"env_steps": n} for n in (10, 20, 30, 40)))
    path.write_bytes(path.read_bytes() + b'{"env_steps": 2')
    written(path, {"env_steps": 35}, resume_at=30)
    assert [row["env_steps"] for row in read_metrics(path)] == [10, 20, 30, 35]
    assert path.read_bytes().count(b"\n") == 4


def test_going_on_without_a_file_begins_one(tmp_path):
    written(tmp_path / "m.jsonl", {"env_steps": 5}, resume_at=3)
    assert read_metrics(tmp_path / "m.jsonl") == [{"env_steps": 5}]


# TensorBoard

POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF  # masked, as TFRecord wants


def events(folder):
    """All events of all files, oldest file first: length, its CRC, the bytes, their CRC."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns):
        assert ".tfevents." in path.name  # what TensorBoard looks for
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            (first,) = struct.unpack_from("<I", data, at + 8)
            body = data[at + 12 : at + 12 + length]
            (second,) = struct.unpack_from("<I", data, at + 12 + length)
            assert (first, second) == (crc32c(data[at : at + 8]), crc32c(body))
            found.append(Event.FromString(body))
            at += 16 + length
    return found


def scalars(folder):
    return [
        (e.step, v.tag, v.simple_value) for e in events(folder) for v in e.summary.value
    ]  # fmt: skip


def test_an_event_file_holds_a_scalar_for_each_number(tmp_path):
    board = TensorBoard(tmp_path / "tb", None)
    board.write({"env_steps": 8, "loss": 0.5, "updates": 3, "bad": float("nan"), "no": None}, 8)
    assert scalars(tmp_path / "tb") == [(8, "loss", 0.5), (8, "updates", 3)]  # before it is closed
    board.write({"env_steps": 16, "loss": 0.25}, 16)
    board.close()
    assert scalars(tmp_path / "tb")[-1] == (16, "loss", 0.25)
    first, *rest = events(tmp_path / "tb")
    assert first.file_version.startswith("brain.Event")
    assert all(e.wall_time > 1.6e9 for e in rest)


def test_going_on_hides_what_came_after_the_checkpoint(tmp_path):
    board = TensorBoard(tmp_path / "tb", None)
    for step in (10, 20, 30):
        board.write({"loss": float(step)}, step)
    board.close()
    again = TensorBoard(tmp_path / "tb", 20)
    again.write({"loss": 7.0}, 30)
    again.close()
    assert len(list((tmp_path / "tb").iterdir())) == 2  # the old file is left as it was
    (start,) = [e for e in events(tmp_path / "tb") if e.HasField("session_log")]
    assert start.session_log.status == start.session_log.START
    assert start.step == 21  # TensorBoard forgets this step and those after it
    assert scalars(tmp_path / "tb")[-1] == (30, "loss", 7.0)


def test_two_boards_in_one_second_do_not_share_a_file(tmp_path):
    boards = [TensorBoard(tmp_path / "tb", None) for _ in range(5)]
    for i, board in enumerate(boards):
        board.write({"loss": float(i)}, i)
        board.close()
    assert len(list((tmp_path / "tb").iterdir())) == 5
