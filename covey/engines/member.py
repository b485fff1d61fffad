"""One member from its birth to its end: what it is given, how it speaks, what it leaves behind."""

from __future__ import annotations

import faulthandler
import io
import random
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import numpy as np

from covey.engines.wire import Wire
from covey.errors import Stopped, UserError
from covey.memory import pulse
from covey.team import Seat, Team, seed_torch

PATIENCE = 60.0
SHOW_STACKS = signal.SIGRTMIN + 7  # asks a member that hangs where it is


class Control:
    """The member's end of its wire to the launcher."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._asking = threading.Lock()

    def memory(self, name: str, size: int, signature: list[Any]) -> int:
        """The descriptor of the team's memory of that name; who asks first makes it."""
        with self._asking:
            self._wire.send({"kind": "memory", "name": name, "size": size, "signature": signature})
            answer, fds = self._wire.answer(PATIENCE)
        if "error" in answer:
            raise UserError(answer["error"])
        return fds[0]

    def tell(self, kind: str, **what: Any) -> None:
        """Say something to the launcher."""
        self._wire.send({"kind": kind, **what})


class Tagged(io.TextIOBase):
    """What a member prints goes to the launcher line by line, which says whose it is."""

    def __init__(self, control: Control, stream: str) -> None:
        self._control, self._stream, self._rest = control, stream, ""
        self._writing = threading.RLock()  # threads share it; text that is written may write too

    def write(self, text: str) -> int:
        """Keep what is not a whole line yet."""
        with self._writing:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._control.tell("print", stream=self._stream, line=line)
        return len(text)

    def flush(self) -> None:
        """Say the rest too."""
        with self._writing:
            if self._rest:
                self.write("\n")

    def writable(self) -> bool:
        """Some ask before they write."""
        return True

    def fileno(self) -> int:
        """For children, which inherit it: what they print is not tagged."""
        return {"stdout": 1, "stderr": 2}[self._stream]


def live(
    given: dict[str, Any], control_fd: int, words_fd: int, job: dict[str, Any], program: bytes
) -> int:
    """Run the program in this place of the team; the exit status comes back.

    What Python can say of a crash or a hang goes to `words_fd`, which the launcher reads.
    """
    faulthandler.enable(file=words_fd)
    faulthandler.register(SHOW_STACKS, file=words_fd)
    control = Control(Wire(socket.socket(fileno=control_fd)))
    sys.stdout = Tagged(control, "stdout")
    sys.stderr = Tagged(control, "stderr")
    seat = Seat(given["rank"], given["generation"], tuple(map(tuple, job["members"])))
    team = Team(job["seed"], seat=seat, post=control, threads=job["threads"])
    try:
        value = _play(team, job["threads"], program)
        control.tell("returned", value=value)
    except Stopped:
        control.tell("returned", value=None)
    except BaseException as error:  # whatever it is, the launcher must know
        trace = "".join(traceback.format_exception(error))
        control.tell("failed", error=str(error), type=type(error).__name__, trace=trace,
                     user=isinstance(error, UserError), phase=team.pulse.phase)  # fmt: skip
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        team.pulse.enter(pulse.ENDED)
    return 0


def _play(team: Team, threads: int, program: bytes) -> Any:
    import cloudpickle

    seed_globals(team, threads)
    value = cloudpickle.loads(program)(team)
    team.pulse.enter(pulse.ENDED)
    return plain(value)


def seed_globals(team: Team, threads: int) -> None:
    """Members are copies of one process: without this their global generators would agree."""
    seeds = team.child("globals").generate_state(3)
    random.seed(int(seeds[0]))
    np.random.seed(int(seeds[1]))
    if "torch" in sys.modules:
        import torch

        seed_torch(int(seeds[2]))
        torch.set_num_threads(threads)


def plain(value: Any) -> Any:
    """What `main` returned as JSON; arrays become lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    raise UserError(
        f"main returned {type(value).__name__}, which does not cross processes. "
        "Return numbers, texts, arrays, lists or dicts of them."
    )
