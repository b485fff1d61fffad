"""How `main` travels: by value, wherever it was written."""

import functools
import subprocess
import sys
import textwrap
import threading
import types

import cloudpickle
import pytest

from covey.engines.program import pickled, unimportable
from covey.errors import UserError

APART = "import sys, pickle; print(pickle.loads(sys.stdin.buffer.read())(20))"


def elsewhere(main):
    """What it returns for 20 in a process that has nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-c", APART], input=pickled(main), capture_output=True, cwd="/", timeout=30
    )
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


def made_by_hand(name, text):
    module = types.ModuleType(name)
    exec(textwrap.dedent(text), module.__dict__)
    return module


BY_HAND = """
    def double(x):
        return 2 * x

    def main(x):
        return double(x) + 2

    class Main:
        def __call__(self, x):
            return double(x) + 2

    lambda_main = lambda x: double(x) + 2
"""


def test_a_closure_travels_with_what_it_closes_over():
    number = 2

    def double(x):
        return 2 * x

    assert elsewhere(lambda x: double(x) + number) == 42


@pytest.mark.parametrize("name", ["main", "lambda_main"])
def test_a_program_without_a_file_travels(name, monkeypatch):
    module = made_by_hand("nowhere", BY_HAND)
    assert elsewhere(getattr(module, name)) == 42  # executed, as a notebook's cells are
    monkeypatch.setitem(sys.modules, "nowhere", module)
    assert unimportable(getattr(module, name)) == [module]
    assert elsewhere(getattr(module, name)) == 42  # as runpy has it


def test_an_instance_travels_with_its_class(monkeypatch):
    module = made_by_hand("nowhere", BY_HAND)
    monkeypatch.setitem(sys.modules, "nowhere", module)
    assert elsewhere(module.Main()) == 42


def test_a_module_that_is_still_read_travels_by_value(tmp_path, monkeypatch):
    """Else each member would import it, and start the same team again."""
    (tmp_path / "halfread.py").write_text(
        "from functools import partial\n"
        "from covey.engines.program import pickled\n"
        "def double(x): return 2 * x\n"
        "def main(x, y): return double(x) + y\n"
        "PROGRAM = pickled(partial(main, y=2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import halfread

    try:
        assert cloudpickle.loads(halfread.PROGRAM)(20) == 42
        assert b"halfread" not in pickled(lambda x: 1)
        done = subprocess.run(
            [sys.executable, "-c", APART], input=halfread.PROGRAM, capture_output=True, cwd="/"
        )
        assert done.stdout == b"42\n", done.stderr
        assert unimportable(halfread.main) == []  # now that it has been read
        assert cloudpickle.list_registry_pickle_by_value() == set()
        by_name = cloudpickle.dumps(halfread.main)
        assert pickled(halfread.main) == by_name
    finally:
        del sys.modules["halfread"]


def test_what_can_be_imported_is_imported():
    assert unimportable(textwrap.dedent) == []
    assert unimportable(functools.partial(textwrap.dedent)) == []
    assert b"textwrap" in pickled(textwrap.dedent)
    assert len(pickled(textwrap.dedent)) < 100


LIVES_HERE = {
    "a lock": threading.Lock(), "a generator": (i for i in range(3)),
    "a thread": threading.current_thread(),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES_HERE)
def test_what_lives_in_this_process_only_is_refused_in_a_sentence(name):
    thing = LIVES_HERE[name]

    def main(team):
        return thing

    with pytest.raises(UserError) as caught:
        pickled(main)
    said = str(caught.value)
    assert said.startswith("main cannot be sent to other processes: ")
    assert said.endswith("(a file, a lock, a generator...): make that inside main.")
    assert "\n" not in said
    assert len(said) < 300


def test_an_open_file_is_refused_too(tmp_path):
    with (tmp_path / "log").open("w") as log, pytest.raises(UserError, match="cannot be sent"):
        pickled(lambda team: log)


def test_what_refuses_to_be_pickled_in_its_own_way_is_refused_in_a_sentence():
    class Stubborn:
        def __reduce__(self):
            raise RuntimeError("never")

    thing = Stubborn()
    with pytest.raises(UserError, match="other processes: never"):
        pickled(lambda team: thing)
    assert cloudpickle.list_registry_pickle_by_value() == set()
