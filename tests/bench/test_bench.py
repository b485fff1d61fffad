"""The names; what each measures has a file of its own."""

from pathlib import Path

import pytest

from covey import bench
from covey.cli import parser

FILES = Path(bench.__file__).parent.glob("*.py")


def test_every_name_is_a_module_that_measures():
    assert set(bench.BENCHES) == {p.stem for p in FILES} - {"__init__", "turns"}
    for name in bench.BENCHES:
        assert bench.bench(name).func.__module__ == f"covey.bench.{name}"


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(bench.UserError, match=r"unknown bench 'seriel'.+ 'serial'"):
        bench.bench("seriel")


def test_numbers_of_a_measurement_may_be_set():
    assert bench.bench("apex", {"paper_seconds": 600, "actors": 2}).keywords == {
        "paper_seconds": 600.0, "actors": 2,
    }  # fmt: skip
    with pytest.raises(bench.UserError, match=r"bench apex has no setting 'second'.+'seconds'"):
        bench.bench("apex", {"second": 1})
    with pytest.raises(bench.UserError, match=r"actors = 1\.5 must be a whole number"):
        bench.bench("apex", {"actors": 1.5})


def test_the_help_lists_the_names():
    sub = parser()._subparsers._group_actions[0].choices["bench"]
    assert f"which: {', '.join(bench.BENCHES)}" in " ".join(sub.format_help().split())
