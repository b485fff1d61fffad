"""Counts for ever, percentiles of the newest."""

import pytest

from covey.task import Timing

NAMES = ["count", "total", "mean", "p50", "p95", "p99"]


def test_nothing_took_no_time():
    assert Timing().summary() == dict.fromkeys(NAMES, 0)
    assert not Timing().newest


def test_summary():
    timing = Timing()
    for i in range(101):
        timing.add(10.0 * i, 10.0 * i + i)
    assert timing.summary() == pytest.approx(
        {"count": 101, "total": 5050, "mean": 50, "p50": 50, "p95": 95, "p99": 99}
    )
    assert list(timing.newest)[:2] == [(0.0, 0.0), (10.0, 11.0)]


def test_old_spans_leave_the_percentiles_and_stay_in_the_total():
    timing = Timing()
    for _ in range(Timing.KEPT):
        timing.add(0.0, 100.0)
    for i in range(Timing.KEPT + 3):
        timing.add(float(i), i + 1.0)
    said = timing.summary()
    assert said["count"] == 2 * Timing.KEPT + 3
    assert said["total"] == 101 * Timing.KEPT + 3
    assert (said["p50"], said["p99"]) == (1.0, 1.0)
    assert list(timing.newest) == [(i, i + 1.0) for i in range(3, Timing.KEPT + 3)]
