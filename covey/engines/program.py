"""What members run: `main` by value, so that they need no module, file or `__main__` of it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import ModuleType

from covey.errors import UserError
from covey.team import Main


def pickled(main: Main) -> bytes:
    """The program as bytes, for processes that this one starts itself."""
    import cloudpickle

    with ExitStack() as after:
        for module in unimportable(main):
            cloudpickle.register_pickle_by_value(module)
            after.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            program: bytes = cloudpickle.dumps(main)
        except Exception as error:
            raise UserError(
                f"main cannot be sent to other processes: {error}. It holds on to something that "
                "lives in this process only (a file, a lock, a generator...): make that inside "
                "main."
            ) from error
    return program


def unimportable(main: Main) -> list[ModuleType]:
    """Modules that members must not import: half read, or with no file to import.

    A module that starts a team while it is imported would start one in every member, and so on.
    """
    found = [
        module
        for module in list(sys.modules.values())
        if getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]
    own = sys.modules.get(getattr(main, "__module__", None) or "__main__")
    if own is not None and getattr(own, "__spec__", None) is None:
        found.append(own)
    return found
