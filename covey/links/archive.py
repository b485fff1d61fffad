"""What a checkpoint holds of a replay, and how it comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from covey.types import Array, Tree

if TYPE_CHECKING:
    from covey.links.replay import Replay


def state(replay: Replay) -> Tree:
    """The rows and their priorities, the counts and the random state."""
    found: Tree = {
        "drawn": replay.drawn, "rng": replay.rng.bit_generator.state, "columns": {},
        "heads": [], "oldest": [], "floor": [], "size": replay.size,
    }  # fmt: skip
    if replay.block is None:
        return found
    head_S, oldest_S = replay.head_S.copy(), replay.there()[0]
    slot_M = slots(replay.size, oldest_S if replay.save_rows else head_S, head_S)
    if replay.priorities is not None:
        replay.take_up(replay.priorities)
        leaf_M = replay.priorities.tree.leaf_N[slot_M]
        others_M = ~replay.mine_S[slot_M // replay.size]  # only their reader knows better
        leaf_M[others_M] = replay.priorities.powers(replay.first_M[slot_M[others_M]])
        found |= {"draws": replay.priorities.draws, "leaf": leaf_M}
    found["columns"] = {name: column[slot_M] for name, column in replay.columns.items()}
    # where others write, rows may have gone meanwhile: they are there, but below the floor
    spans = {"heads": head_S, "oldest": oldest_S, "floor": replay.there()[0]}
    return {**found, **{name: span_S.tolist() for name, span_S in spans.items()}}


def slots(size: int, oldest_S: Array, head_S: Array) -> Array:
    """Where the rows of these numbers are, shard after shard of this size."""
    spans = zip(oldest_S.tolist(), head_S.tolist(), strict=True)
    return np.concatenate([s * size + np.arange(a, b) % size for s, (a, b) in enumerate(spans)])


def restore(replay: Replay, state: Tree) -> bool:
    """Take them back, before anybody adds; False where filling begins anew."""
    replay.rng.bit_generator.state = state["rng"]
    head_S, oldest_S = (np.array(state[name], np.int64) for name in ("heads", "oldest"))
    num = int((head_S - oldest_S).sum())
    if not head_S.any():
        return True
    columns = state["columns"]
    fits = len(head_S) == replay.shards and state["size"] == replay.size and replay.added == 0
    if not fits or any(len(column) != num for column in columns.values()):
        return False
    if replay.block is None:
        replay.open_for(columns)
    slot_M = slots(replay.size, oldest_S, head_S)
    for name, saved in columns.items():
        replay.columns[name][slot_M] = saved
    replay.begun_S[:], replay.head_S[:], replay.floor_S[:] = head_S, head_S, state["floor"]
    replay.drawn_R[:] = state["drawn"] // len(replay.drawn_R)
    if replay.priorities is not None:
        replay.first_M[slot_M] = state["leaf"] ** (1 / replay.draw.alpha)  # for other readers
        mine_M = replay.mine_S[slot_M // replay.size]
        leaf_M = np.where(mine_M, state["leaf"], 0)
        replay.priorities.restore(slot_M, leaf_M, head_S * replay.mine_S, state["draws"])
    return True
