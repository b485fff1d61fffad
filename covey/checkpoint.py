"""States on disk: staged, synced, renamed to a new name, found again by scanning. No pickle.

A checkpoint is a folder: `arrays.safetensors`, `state.json` (the tree, with the arrays' names in
their places) and `manifest.json` (what it is, and the size and sha256 of the other two).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covey.errors import UserError
from covey.types import Array, Tree, dtype_of, plain_dtype

SCHEMA = 1
FILES = ("arrays.safetensors", "state.json")


class CheckpointError(UserError):
    """A checkpoint that cannot be trusted, and why."""


class Checkpoint(NamedTuple):
    """What was read back."""

    path: Path
    tree: Tree
    manifest: dict[str, Any]
    skipped: list[CheckpointError]  # newer ones that were bad


def save(folder: Path, step: int, tree: Tree, about: Mapping[str, Any]) -> Path:
    """Write a new checkpoint; a crash at any point leaves the older ones as they were."""
    target = folder / _name(step)
    if target.exists():
        return target  # the same step of the same run: it is there already
    stage = folder / f".staging-{os.getpid()}"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        arrays: dict[str, Array] = {}
        state = _split(tree, "", arrays)
        _write_arrays(stage / "arrays.safetensors", arrays)
        (stage / "state.json").write_text(json.dumps(state), encoding="utf-8")
        manifest = {**about, "schema": SCHEMA, "step": step, "files": _digests(stage)}
        manifest["sha256"] = _own_digest(manifest)
        (stage / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for file in stage.iterdir():
            _sync(file)
        _sync(stage)
        stage.rename(target)
        _sync(folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return target


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep`, and what interrupted saves and all but one bad one left."""
    for old in steps(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    for left in [*folder.glob(".staging-*"), *sorted(folder.glob("bad_*"))[:-1]]:
        shutil.rmtree(left, ignore_errors=True)


def set_aside(folder: Path, newer_than: int) -> None:
    """Give what is newer than a step, as it was bad, another name: the step will come again."""
    for path in steps(folder):
        if path.name > _name(newer_than):
            shutil.rmtree(path.with_name(f"bad_{path.name}"), ignore_errors=True)
            path.rename(path.with_name(f"bad_{path.name}"))


def _name(step: int) -> str:
    return f"step_{step:012d}"


def steps(folder: Path) -> list[Path]:
    """The checkpoints there are, newest first, good or bad."""
    return sorted(folder.glob("step_*"), reverse=True)


def newest_good(folder: Path) -> Checkpoint:
    """The newest one that is whole; what is wrong with newer ones comes along."""
    skipped: list[CheckpointError] = []
    for path in steps(folder):
        try:
            return load(path)._replace(skipped=skipped)
        except CheckpointError as error:
            skipped.append(error)
    if skipped:
        raise CheckpointError(f"no good checkpoint in {folder}. {skipped[0]}")
    raise CheckpointError(f"no checkpoint in {folder}. Was it saved? Train again, or give a run.")


def load(path: Path) -> Checkpoint:
    """Read and verify one."""
    manifest = _read_json(path, "manifest.json")
    schema = manifest.get("schema")
    if schema != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {schema}, written by covey {manifest.get('version', 'unknown')}; "
            f"this version reads schema {SCHEMA}. Use that version of covey."
        )
    if manifest.get("sha256") != _own_digest(manifest):
        raise CheckpointError(f"{path / 'manifest.json'} has another digest. Use another one.")
    for name in FILES:
        wanted, file = _facts(manifest, name, path), path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing. Use another checkpoint.")
        size = file.stat().st_size
        if size != wanted["bytes"]:
            raise CheckpointError(
                f"{file} has {size} bytes instead of {wanted['bytes']}. Use another checkpoint."
            )
        if _sha256(file) != wanted["sha256"]:
            raise CheckpointError(f"{file} has another digest. Use another checkpoint.")
    from safetensors.numpy import load_file

    arrays = load_file(path / "arrays.safetensors")
    tree = _join(_read_json(path, "state.json"), arrays)
    return Checkpoint(path, tree, manifest, [])


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((path / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path / name} cannot be read: {error.strerror}. Use another checkpoint."
        ) from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path / name} is not whole. Use another checkpoint.") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path / name} is not a manifest. Use another checkpoint.")
    return found


def _split(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """The tree as JSON; arrays and tensors go into `arrays` under their dotted names."""
    if isinstance(value, Mapping):
        return {
            str(k): _split(v, f"{name}.{k}" if name else str(k), arrays) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_split(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.void):
        value = np.asarray(value)
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        return value
    place: dict[str, Any] = {"$array": name, "shape": list(value.shape)}
    if value.dtype.names is not None:  # records travel as bytes
        place["fields"] = plain_dtype(value.dtype)
        value = np.frombuffer(value.tobytes(), np.uint8)
    while name in arrays:  # a dotted name may look like a nested one
        name = place["$array"] = f"{name}'"
    arrays[name] = np.ascontiguousarray(value)
    return place


def _join(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_join(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    if "$array" not in value:
        return {k: _join(v, arrays) for k, v in value.items()}
    array = arrays[value["$array"]]
    if "fields" in value:
        array = array.view(dtype_of(value["fields"]))
    return array.reshape(value["shape"])


def _write_arrays(file: Path, arrays: dict[str, Array]) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, file)


def _digests(stage: Path) -> dict[str, dict[str, Any]]:
    return {
        name: {"sha256": _sha256(stage / name), "bytes": (stage / name).stat().st_size}
        for name in FILES
    }


def _facts(manifest: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """The size and digest that a manifest says a file has."""
    files = manifest.get("files")
    facts = files.get(name) if isinstance(files, dict) else None
    if not isinstance(facts, dict) or not {"bytes", "sha256"} <= facts.keys():
        raise CheckpointError(f"{path / 'manifest.json'} does not describe {name}. Use another.")
    return facts


def _own_digest(manifest: Mapping[str, Any]) -> str:
    """Of everything in a manifest but the digest itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
