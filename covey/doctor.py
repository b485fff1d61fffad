"""What is installed and what this machine has."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

NEEDED = (
    "torch", "numpy", "gymnasium", "safetensors", "tensorboardX", "threadpoolctl", "cloudpickle",
)  # fmt: skip
EXTRAS = {
    "atari": ("ale_py", "ale-py"),
    "box2d": ("Box2D", "box2d"),
    "mujoco": ("mujoco", "mujoco"),
}


def examine() -> dict[str, Any]:
    """Plain facts; `ok` says whether covey can run."""
    packages = {name: _version(name) for name in ("covey", *NEEDED)}
    extras = {
        extra: _version(package) or "installed"
        for extra, (module, package) in EXTRAS.items()
        if importlib.util.find_spec(module) is not None
    }
    writable = os.access(Path.cwd(), os.W_OK)
    return {
        "ok": all(packages.values()) and sys.version_info >= (3, 11) and writable,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "packages": packages,
        "extras": extras,
        "missing_extras": sorted(set(EXTRAS) - set(extras)),
        "folder_writable": writable,
        "disk_free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1),
        "open_files_limit": _open_files_limit(),
        "sum_tree": _sum_tree(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sum_tree() -> str:
    from covey.memory.sumtree import compiled

    return "numpy" if compiled() is None else "compiled"


def _open_files_limit() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def tell(found: dict[str, Any]) -> str:
    """The facts as lines, and what to do about each that is wrong."""
    lines = [
        f"python     {found['python']}, {found['cores']} cores, {found['platform']}",
        f"disk       {found['disk_free_gb']} GB free here"
        + ("" if found["folder_writable"] else "; this folder cannot be written: change folder"),
    ]
    for name, number in found["packages"].items():
        lines.append(f"{name:<10} {number or f'missing: pip install {name}'}")
    for extra, number in found["extras"].items():
        lines.append(f"{extra:<10} {number} (extra)")
    for extra in found["missing_extras"]:
        lines.append(f"{extra:<10} not installed: pip install 'covey[{extra}]'")
    slow = "" if found["sum_tree"] == "compiled" else ": install a C compiler, then covey again"
    lines.append(f"sum tree   {found['sum_tree']}{slow}")
    lines.append("all is well" if found["ok"] else "something is missing")
    return "\n".join(lines)
