import json
import os

from covey import doctor


def test_this_machine_is_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctor.examine()
    assert found["ok"] is True
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["open_files_limit"] > 0
    assert all(found["packages"].values())
    assert set(found["extras"]) | set(found["missing_extras"]) == set(doctor.EXTRAS)
    assert not set(found["extras"]) & set(found["missing_extras"])
    assert json.loads(json.dumps(found)) == found
    assert doctor.tell(found).endswith("all is well")


def test_a_missing_package_is_named_with_the_way_to_it(monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED", (*doctor.NEEDED, "no-such-package"))
    found = doctor.examine()
    assert found["ok"] is False
    assert found["packages"]["no-such-package"] is None
    told = doctor.tell(found)
    assert "missing: pip install no-such-package" in told
    assert told.endswith("something is missing")


def test_a_missing_extra_is_no_fault_and_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor, "EXTRAS", {"moon": ("no_such_module", "no-such")})
    found = doctor.examine()
    assert (found["ok"], found["extras"], found["missing_extras"]) == (True, {}, ["moon"])
    assert "pip install 'covey[moon]'" in doctor.tell(found)


def test_a_folder_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = doctor.examine()
    assert found["ok"] is False
    assert "this folder cannot be written: change folder" in doctor.tell(found)


def test_all_that_the_project_needs_is_looked_for():
    import tomllib
    from pathlib import Path

    project = Path(__file__).parent.parent / "pyproject.toml"
    said = tomllib.loads(project.read_text())["project"]
    needed = {line.split(">")[0].split("[")[0] for line in said["dependencies"]}
    assert needed == set(doctor.NEEDED)
    assert set(doctor.EXTRAS) == set(said["optional-dependencies"]) - {"dev"}


def test_a_sum_tree_that_was_not_compiled_is_told_with_the_way_to_it(monkeypatch):
    from covey.memory import sumtree

    wanted = "compiled" if sumtree.compiled() else "numpy"
    assert f"sum tree   {wanted}" in doctor.tell(doctor.examine())
    monkeypatch.setattr(sumtree, "compiled", lambda: None)
    told = doctor.tell(doctor.examine())
    assert "sum tree   numpy: install a C compiler, then covey again" in told
    assert told.endswith("all is well")
