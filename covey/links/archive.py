"""What a checkpoint holds of a replay, and how it comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from covey.memory.frames import Frames, Stack
from covey.types import Array, Tree

if TYPE_CHECKING:
    from covey.links.replay import Replay


def state(replay: Replay) -> Tree:
    """The rows and their priorities, the counts and the random state; each frame once."""
    found: Tree = {
        "drawn": replay.drawn, "rng": replay.rng.bit_generator.state, "columns": {},
        "heads": [], "oldest": [], "floor": [], "size": replay.size,
    }  # fmt: skip
    if replay.block is None:
        return found
    head_S = replay.head_S.copy()
    oldest_S = np.minimum(replay.there()[0], head_S)
    slot_M = slots(replay.size, oldest_S if replay.save_rows else head_S, head_S)
    if replay.priorities is not None:
        replay.take_up(replay.priorities)
        leaf_M = replay.priorities.tree.leaf_N[slot_M]
        others_M = ~replay.mine_S[slot_M // replay.size]  # only their reader knows better
        leaf_M[others_M] = replay.priorities.powers(replay.first_M[slot_M[others_M]])
        found |= {"draws": replay.priorities.draws, "leaf": leaf_M}
    found["columns"] = {name: column[slot_M] for name, column in _plain(replay).items()}
    if replay.frames is not None:
        found["images"] = _images(replay.frames, slot_M, replay.save_rows)
    # where others write, rows may have gone meanwhile: they are there, but below the floor
    floor_S = np.minimum(replay.there()[0], head_S)
    spans = {"heads": head_S, "oldest": oldest_S, "floor": floor_S}
    return {**found, **{name: span_S.tolist() for name, span_S in spans.items()}}


def slots(size: int, oldest_S: Array, head_S: Array) -> Array:
    """Where the rows of these numbers are, shard after shard of this size."""
    spans = zip(oldest_S.tolist(), head_S.tolist(), strict=True)
    return np.concatenate([s * size + np.arange(a, b) % size for s, (a, b) in enumerate(spans)])


def _plain(replay: Replay) -> dict[str, Array]:
    return {n: c for n, c in replay.columns.items() if not isinstance(c, Stack)}


def _images(frames: Frames, slot_M: Array, save_rows: bool) -> Tree:
    """The numbers of these rows' frames, and the frames from the first that they refer to."""
    numbers = {name: number_MK[slot_M] for name, number_MK in frames.numbers.items()}
    oldest_M, end_S = frames.oldest_M[slot_M], frames.end_S.copy()
    # what the next rows look back to is there as well: they find what they would have found
    first_S = end_S - frames.reach * save_rows
    np.minimum.at(first_S, slot_M // frames.size, oldest_M)
    np.maximum(first_S, np.maximum(end_S - frames.num, 0), out=first_S)
    frame_F = frames.frame_F[slots(frames.num, first_S, end_S)].view(np.uint8)
    return {
        "numbers": numbers, "oldest": oldest_M, "frames": frame_F.reshape(-1, *frames.form),
        "first": first_S.tolist(), "end": end_S.tolist(),
    }  # fmt: skip


def restore(replay: Replay, state: Tree) -> bool:
    """Take them back, before anybody adds; False where filling begins anew."""
    replay.rng.bit_generator.state = state["rng"]
    head_S, oldest_S = (np.array(state[name], np.int64) for name in ("heads", "oldest"))
    num = int((head_S - oldest_S).sum())
    if not head_S.any():
        return True
    columns, images = state["columns"], state.get("images")
    stored = [*columns.values(), *([images["oldest"]] if images else [])]
    fits = len(head_S) == replay.shards and state["size"] == replay.size and replay.added == 0
    if not fits or any(len(column) != num for column in stored):
        return False
    if replay.block is None:
        replay.open_for({**columns, **(_forms(images) if images else {})})
    if (images is None) != (replay.frames is None):
        return False
    slot_M = slots(replay.size, oldest_S, head_S)
    for name, column in _plain(replay).items():
        column[slot_M] = columns[name]
    if images is not None and replay.frames is not None:
        _restore_images(replay.frames, images, slot_M)
    replay.begun_S[:], replay.head_S[:], replay.floor_S[:] = head_S, head_S, state["floor"]
    replay.drawn_R[:] = state["drawn"] // len(replay.drawn_R)
    if replay.priorities is not None:
        replay.first_M[slot_M] = state["leaf"] ** (1 / replay.draw.alpha)  # for other readers
        mine_M = replay.mine_S[slot_M // replay.size]
        leaf_M = np.where(mine_M, state["leaf"], 0)
        replay.priorities.restore(slot_M, leaf_M, head_S * replay.mine_S, state["draws"])
    return True


def _forms(images: Tree) -> dict[str, Array]:
    """Rows of the form of these images; none."""
    first, *rest = images["frames"].shape[1:]
    return {
        name: np.empty((0, number_NK.shape[1] * first, *rest), np.uint8)
        for name, number_NK in images["numbers"].items()
    }


def _restore_images(frames: Frames, images: Tree, slot_M: Array) -> None:
    first_S, end_S = (np.array(images[name], np.int64) for name in ("first", "end"))
    saved = images["frames"]
    frame_F = saved.reshape(len(saved), -1).view(frames.word)
    frames.frame_F[slots(frames.num, first_S, end_S)] = frame_F
    for name, number_MK in frames.numbers.items():
        number_MK[slot_M] = images["numbers"][name]
    frames.oldest_M[slot_M], frames.end_S[:] = images["oldest"], end_S
