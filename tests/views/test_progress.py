import io

import pytest

from covey.views import progress
from covey.views.progress import Progress, clock, line, short


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    """A clock to be set."""
    hand = [1000.0]
    monkeypatch.setattr(progress, "monotonic", lambda: hand[0])
    return hand


def row(env_steps=41_000, **more):
    return {"env_steps": env_steps, "env_steps_per_second": 61_234.0, "updates_per_second": 950.4,
            **more}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (0.4, "0"), (7, "7"), (950.4, "950"), (1000, "1k"), (41_000, "41k"),
        (61_234, "61.2k"), (999_000, "999k"), (1e6, "1M"), (2_500_000, "2.5M"), (1e9, "1G"),
        (123_456_789_012, "123G"),
        (999_999, "1M"), (999_999_999, "1G"),
    ],
)  # fmt: skip
def test_short_numbers(number, text):
    assert short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"), (-5, "0:00"), (35, "0:35"), (59.6, "1:00"), (60, "1:00"), (727, "12:07"),
        (3599.7, "1:00:00"), (10_800, "3:00:00"), (3661, "1:01:01"), (100 * 3600, "100:00:00"),
    ],
)  # fmt: skip
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("more", "remaining", "best", "text"),
    [
        ({}, None, None, " 41%  41k/100k  61.2k env steps/s  950 updates/s"),
        ({"return_mean": 187.04, "return_std": 12.31}, 35.2, 231.0,
         " 41%  41k/100k  ETA 0:35  return 187 +- 12.3  best eval 231  61.2k env steps/s  "
         "950 updates/s"),
        ({}, 0, -90.5, " 41%  41k/100k  ETA 0:00  best eval -90.5  61.2k env steps/s  950 upd"),
    ],
)  # fmt: skip
def test_a_line(more, remaining, best, text):
    assert line(row(**more), 100_000, remaining, best).startswith(text)


def test_a_share_is_never_more_than_all():
    assert line(row(150_000), 100_000, None, None).startswith("100%  150k/100k")
    assert line(row(99_999), 100_000, None, None).startswith(" 99%")


def test_a_terminal_is_redrawn_in_place_at_most_five_times_a_second(now):
    out = Terminal()
    shown = Progress(100_000, out)
    for _ in range(10):
        shown.show(row(), None)
        now[0] += 0.1
    assert out.getvalue().count("\r\x1b[K") == 5
    assert "\n" not in out.getvalue()
    shown.close()
    assert out.getvalue().endswith("\n")
    shown.close()
    assert out.getvalue().count("\n") == 1


def test_a_line_that_stays_clears_the_one_that_is_redrawn(now):
    out = Terminal()
    shown = Progress(100_000, out)
    shown.say("first")
    shown.show(row(), None)
    shown.say("second")
    shown.say("third")
    shown.close()
    assert out.getvalue().startswith("first\n\r\x1b[K 41%")
    assert out.getvalue().endswith("\r\x1b[Ksecond\nthird\n")


def test_a_redrawn_line_fits_the_terminal(now, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    Progress(100_000, out).show(row(return_mean=1.0, return_std=1.0), 3.0)
    assert len(out.getvalue().removeprefix("\r\x1b[K")) == 39


def test_a_pipe_gets_plain_lines_now_and_then(now):
    out = io.StringIO()
    shown = Progress(100_000, out)
    for _ in range(110):  # 11 seconds
        shown.show(row(), None)
        now[0] += 0.1
    shown.say("warning")
    shown.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 4  # at 0, 5 and 10 seconds
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_quiet_says_nothing(kind, now):
    out = kind()
    shown = Progress(100, out, quiet=True)
    shown.say("hello")
    shown.show(row(), 1.0)
    shown.close()
    assert out.getvalue() == ""


def test_the_time_left_is_by_what_this_stretch_did(now):
    out = io.StringIO()
    shown = Progress(100_000, out)
    shown.show(row(40_000), None)  # resumed here: nothing is known yet
    now[0] += 30
    shown.show(row(60_000), None)  # 20k in 30 s, 40k to go
    first, second = out.getvalue().splitlines()
    assert "ETA" not in first
    assert "ETA 1:00" in second
