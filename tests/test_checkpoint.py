"""States on disk: whatever breaks, an older one is found; whatever is damaged is told."""

import ast
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from covey import checkpoint, runs
from covey.checkpoint import CheckpointError, load, newest_good, prune, save
from covey.config import TrainConfig
from covey.runs import Run
from covey.types import Leaf, Spec

ABOUT = {"version": "0.0.9", "env": "E-v0", "algo": "dqn", "spec": {"num_actions": 2}}
RECORD = np.dtype([("camera", np.uint8, (2, 2)), ("speed", np.float32, (3,)), ("gear", np.int64)])
SPEC = Spec({"": Leaf((4,), np.dtype(np.float32))}, num_actions=2, action_dim=0)
DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float32, np.float64,
]  # fmt: skip


def small(number=0):
    return {
        "agent": {"w": np.full(5, number, np.float32)},
        "task": {"rounds": number},
        "best": None,
    }


def same(one, two, where="tree"):
    if isinstance(one, dict):
        assert list(one) == list(two), where
        for key in one:
            same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            same(a, b, f"{where}.{i}")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (two.dtype, two.shape), where
        assert one.tobytes() == two.tobytes(), where
    else:
        assert type(one) is type(two), where
        assert one == two, where


def back(tree, tmp_path):
    return load(save(tmp_path / "c", 1, tree, ABOUT)).tree


# round trips


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_of_every_kind_and_shape_come_back(dtype, shape, tmp_path):
    bits = np.random.default_rng(0).integers(0, 2, shape)
    array = (bits * 3 - 1).astype(dtype) if dtype is not np.bool_ else bits.astype(bool)
    same({"a": np.asarray(array)}, back({"a": np.asarray(array)}, tmp_path))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3,), (2, 3)])
def test_records_come_back(shape, tmp_path):
    records = np.zeros(shape, RECORD)
    records["speed"] = 1.5
    records["gear"] = -7
    same({"r": records}, back({"r": records}, tmp_path))


def test_one_record_taken_from_an_array_comes_back(tmp_path):
    records = np.zeros(3, RECORD)
    records["gear"] = [1, 2, 3]
    found = back({"r": records[1]}, tmp_path)["r"]
    assert (found.shape, found.dtype, int(found["gear"])) == ((), RECORD, 2)


def test_tensors_come_back_as_arrays(tmp_path):
    torch = pytest.importorskip("torch")
    tree = {
        "weight": torch.arange(6.0).reshape(2, 3).requires_grad_(),
        "transposed": torch.arange(6).reshape(2, 3).T,
        "scalar": torch.tensor(3, dtype=torch.int64),
        "rng": torch.get_rng_state(),
    }
    found = back(tree, tmp_path)
    for name, tensor in tree.items():
        same(np.ascontiguousarray(tensor.detach().numpy()).reshape(tuple(tensor.shape)),
             found[name])  # fmt: skip


def test_plain_values_nested_lists_and_huge_numbers_come_back(tmp_path):
    tree = {
        "rng": np.random.default_rng(2**100).bit_generator.state,  # 128-bit whole numbers
        "none": None, "yes": True, "text": "ünï ☃ \n \"quoted\"", "empty": {}, "nothing": [],
        "list": [1, 2.5, "x", None, [np.arange(3), {"deep": np.ones(2)}]],
        "smallest": 5e-324, "inf": -float("inf"),
    }  # fmt: skip
    same(tree, back(tree, tmp_path))


def test_a_random_state_that_came_back_goes_on_the_same(tmp_path):
    rng = np.random.default_rng(5)
    rng.random(7)
    found = back({"rng": rng.bit_generator.state}, tmp_path)
    other = np.random.default_rng(0)
    other.bit_generator.state = found["rng"]
    assert (other.random(10) == rng.random(10)).all()


def test_a_dotted_name_is_not_mistaken_for_a_nested_one(tmp_path):
    tree = {"net.weight": np.ones(2), "net": {"weight": np.zeros(3)}}
    same(tree, back(tree, tmp_path))


def test_what_came_back_can_be_written_to(tmp_path):
    found = back({"a": np.zeros(3), "r": np.zeros(2, RECORD)}, tmp_path)
    found["a"][0] = 1
    found["r"]["gear"][0] = 1


def test_saving_the_same_step_twice_keeps_the_first(tmp_path):
    first = save(tmp_path, 5, small(1), ABOUT)
    assert save(tmp_path, 5, small(2), ABOUT) == first
    assert load(first).tree["task"] == {"rounds": 1}
    assert load(first).manifest["step"] == 5


# damage


@pytest.fixture
def two(tmp_path):
    """An older and a newer checkpoint."""
    folder = tmp_path / "checkpoints"
    return save(folder, 900, small(1), ABOUT), save(folder, 1000, small(2), ABOUT)


@pytest.mark.parametrize("name", [*checkpoint.FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "folder"])
def test_the_older_one_is_found_when_a_file_of_the_newer_is_bad(name, damage, two):
    file = two[1] / name
    content = file.read_bytes()
    file.unlink()
    if damage == "empty":
        file.touch()
    elif damage == "half":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "folder":
        file.mkdir()
    found = newest_good(two[1].parent)
    assert found.path == two[0]
    assert found.tree["task"] == {"rounds": 1}
    (told,) = found.skipped
    assert str(two[1]) in str(told)
    assert "\n" not in str(told)


def meaning(found):
    return {key: found.manifest.get(key) for key in ("step", "env", "algo", "spec")}


def test_sixty_random_flips_and_cuts_are_all_detected(tmp_path):
    rng = np.random.default_rng(60)
    whole = save(tmp_path, 1, small(3), ABOUT)
    before = load(whole)
    for _ in range(60):
        file = whole / ["arrays.safetensors", "state.json", "manifest.json"][rng.integers(3)]
        content = file.read_bytes()
        spoilt = bytearray(content)
        if rng.random() < 0.5:
            spoilt[rng.integers(len(spoilt))] ^= 1 << int(rng.integers(8))
        else:
            del spoilt[rng.integers(len(spoilt)) :]
        file.write_bytes(spoilt)
        try:
            found = load(whole)
        except CheckpointError:
            pass
        else:
            assert file.name == "manifest.json"
            same(before.tree, found.tree)
        file.write_bytes(content)


def test_no_flipped_bit_of_the_manifest_changes_what_a_checkpoint_says_it_is(tmp_path):
    """The step is where a resumed run goes on, the rest is what it is compared with."""
    whole = save(tmp_path, 1, small(3), ABOUT)
    before, file = load(whole), whole / "manifest.json"
    content = file.read_bytes()
    wrong = []
    for i in range(len(content)):
        file.write_bytes(content[:i] + bytes([content[i] ^ (1 << i % 7)]) + content[i + 1 :])
        try:
            found = load(whole)
        except CheckpointError:
            continue
        same(before.tree, found.tree)
        if meaning(found) != meaning(before):
            wrong.append((i, content[max(0, i - 12) : i + 12]))
    assert not wrong, (len(wrong), wrong[:3])


def manifest(path, **changes):
    file = path / "manifest.json"
    changed = {**json.loads(file.read_text()), **changes}
    changed["sha256"] = checkpoint._own_digest(changed)  # as somebody would who means it
    file.write_text(json.dumps(changed))


def test_a_newer_schema_names_the_version_that_wrote_it(two):
    manifest(two[1], schema=2, version="9.1")
    with pytest.raises(CheckpointError, match=r"has schema 2, written by covey 9\.1; .*schema 1"):
        load(two[1])
    assert newest_good(two[1].parent).path == two[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"x"', "[" * 100_000, "\xff"])
def test_a_manifest_that_is_none_is_told(text, two):
    (two[1] / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"manifest\.json is not"):
        load(two[1])


@pytest.mark.parametrize("files", [[], None, "x", {"state.json": 3}, {"arrays.safetensors": []}])
def test_a_manifest_of_another_form_is_told(files, two):
    manifest(two[1], files=files)
    with pytest.raises(CheckpointError):
        load(two[1])


def test_names_in_a_manifest_lead_nowhere(two, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    files = json.loads((two[1] / "manifest.json").read_text())["files"]
    more = {"../../secret": {"bytes": 99, "sha256": "0"}, "/etc/passwd": {}, str(secret): {}}
    manifest(two[1], files={**files, **more})
    assert load(two[1]).tree["task"] == {"rounds": 2}
    assert secret.read_text() == "x"


def test_all_bad_and_none_at_all_are_told(two):
    for path in two:
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"no good checkpoint in .*state\.json is missing"):
        newest_good(two[0].parent)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*Was it saved"):
        newest_good(two[0].parent / "nowhere")


# crashes

CHILD = """
import os, signal, sys
from pathlib import Path
import numpy as np
from covey import checkpoint
from test_checkpoint import ABOUT, small

left = 10**9

def die(event, _):
    # Python itself tells of every file that is opened, made, renamed or removed
    global left
    if event == "open" or event.startswith(("os.", "shutil.")) and event != "os.kill":
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

sys.addaudithook(die)

def die_at(call, spoil=None):
    def wrapped(*args, **more):
        global left
        for moment in ("before", "halfway", "after"):
            if moment == "after":
                result = call(*args, **more)
            if left == 0:
                if moment == "halfway" and spoil:
                    spoil(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return result
    return wrapped

write, arrays = Path.write_text, checkpoint._write_arrays

def half_text(path, text, **_):
    write(path, text[: len(text) // 2])

def half_arrays(file, tree):
    arrays(file, tree)
    os.truncate(file, file.stat().st_size // 2)

checkpoint._write_arrays = die_at(arrays, half_arrays)
Path.write_text = die_at(write, half_text)
Path.rename, os.fsync = die_at(Path.rename), die_at(os.fsync)
for k in range(200):
    pid = os.fork()
    if pid == 0:
        left = k
        checkpoint.save(Path(sys.argv[1]) / str(k), 1000, small(2), ABOUT)
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        print(k)
        break
"""


def test_killed_at_any_moment_of_a_save_the_old_or_the_new_one_is_whole(tmp_path):
    old = save(tmp_path / "old", 900, small(1), ABOUT).parent
    for k in range(150):
        shutil.copytree(old, tmp_path / str(k))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    moments = int(done.stdout)
    assert 30 < moments < 150
    ends = []
    for k in range(moments + 1):
        folder = tmp_path / str(k)
        found = newest_good(folder)
        assert not found.skipped, k  # what is half there has not the name of a checkpoint
        ends.append(found.tree["task"]["rounds"])
        assert found.tree["agent"]["w"].tolist() == [ends[-1]] * 5
        prune(folder, keep=9)
        assert not list(folder.glob(".staging-*"))
    assert ends == sorted(ends)  # never back to the old one
    assert {ends[0], ends[-1]} == {1, 2}


def test_prune_keeps_the_newest_and_clears_what_was_begun(tmp_path):
    for step in (1, 20, 300, 4000, 10**11):
        save(tmp_path, step, small(step), ABOUT)
    (tmp_path / ".staging-77").mkdir()
    (tmp_path / ".staging-77" / "state.json").write_text("{")
    prune(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000000004000", "step_100000000000"]


# through a run


@pytest.fixture
def run(tmp_path):
    opened = Run.create(TrainConfig(algo="dqn", env="E-v0", keep=1), tmp_path / "run")
    yield opened
    opened.close()


def save_run(run, tree, step):
    """As a member does, which may be in another process than the run."""
    return runs.save(run.folder, run.config, tree, SPEC, step, run.event)


def events(run):
    return [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("moment", ["arrays", "manifest", "sync"])
def test_a_full_disk_is_an_event_and_leaves_the_old_one(moment, run, monkeypatch):
    assert save_run(run, small(1), 100) is not None

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if moment == "arrays":
            patch.setattr(checkpoint, "_write_arrays", full)
        elif moment == "manifest":
            patch.setattr(Path, "write_text", full)
        else:
            patch.setattr(os, "fsync", full)
        assert save_run(run, small(2), 200) is None
    told = events(run)[-1]
    assert (told["event"], told["env_steps"]) == ("checkpoint_failed", 200)
    assert "No space left" in told["error"]
    assert [p.name for p in run.checkpoints.iterdir()] == ["step_000000000100"]
    assert newest_good(run.checkpoints).tree["task"] == {"rounds": 1}
    assert save_run(run, small(2), 300) is not None
    assert newest_good(run.checkpoints).tree["task"] == {"rounds": 2}


def resumed_past_a_bad_one(tmp_path, keep=1):
    """A run that stands at 100 because its checkpoint of 200 is bad."""
    config = TrainConfig(algo="dqn", env="E-v0", keep=2)
    first = Run.create(config, tmp_path / "run")
    save_run(first, small(1), 100)
    bad = save_run(first, small(2), 200)
    first.close()
    (bad / "state.json").write_text("{")
    saved = newest_good(first.checkpoints)
    assert saved.manifest["step"] == 100
    return Run(first.folder, TrainConfig(algo="dqn", env="E-v0", keep=keep), 100)


@pytest.mark.parametrize("keep", [1, 3])
def test_after_a_bad_one_was_skipped_the_same_step_is_saved_anew(keep, tmp_path):
    run = resumed_past_a_bad_one(tmp_path, keep)
    save_run(run, small(3), 200)
    run.close()
    found = newest_good(run.checkpoints)
    assert (found.manifest["step"], found.tree["task"]) == (200, {"rounds": 3})


def test_a_bad_newer_one_does_not_push_out_the_good_one_just_saved(tmp_path):
    run = resumed_past_a_bad_one(tmp_path)
    save_run(run, small(3), 150)
    run.close()
    assert newest_good(run.checkpoints).manifest["step"] == 150


# no pickle


def test_saving_and_loading_never_pickles(run, monkeypatch):
    import marshal
    import pickle

    torch = pytest.importorskip("torch")

    def refuse(*_, **__):
        raise AssertionError("pickled")

    for module, name in ((pickle, "Unpickler"), (pickle, "Pickler"), (pickle, "load"),
                         (pickle, "loads"), (pickle, "dump"), (pickle, "dumps"), (torch, "load"),
                         (torch, "save"), (marshal, "loads"), (marshal, "dumps")):  # fmt: skip
        monkeypatch.setattr(module, name, refuse)
    tree = {**small(1), "records": np.zeros(2, RECORD), "t": torch.ones(2)}
    path = save_run(run, tree, 100)
    assert load(path).tree["t"].tolist() == [1, 1]


# the launcher sends `main` to the processes that it starts itself, and nobody else gets one
PICKLES = {"engines/program.py", "engines/zygote.py", "engines/member.py"}


def test_no_file_imports_a_pickler_or_runs_text():
    refused = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "_pickle"}
    root = Path(checkpoint.__file__).parent
    files = list(root.rglob("*.py"))
    assert len(files) > 30
    assert {str(f.relative_to(root)) for f in files if "import cloudpickle" in f.read_text()} == (
        PICKLES
    )
    for file in files:
        allowed = {"cloudpickle"} if str(file.relative_to(root)) in PICKLES else set()
        for node in ast.walk(ast.parse(file.read_text())):
            found = set()
            if isinstance(node, ast.Import):
                found = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = {(node.module or "").split(".")[0]}
            assert not found & refused - allowed, file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), file
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "torch":
                    assert node.attr not in ("load", "save"), file
                if node.value.id in ("np", "numpy"):
                    assert node.attr not in ("load", "save"), file
