"""Compiles the one file of C, where there is a compiler; without it covey runs on numpy instead."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "covey/memory/sumtree.c"
LIBRARY = "covey/memory/libsumtree.so"


class Compile(BuildHookInterface):
    """A plain shared library: it knows nothing of Python's versions."""

    def initialize(self, version, build_data):
        if self.target_name != "wheel":
            return
        compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
        if compiler is None:
            print("no C compiler: priorities will be drawn by numpy", file=sys.stderr)
            return
        source, library = Path(self.root, SOURCE), Path(self.root, LIBRARY)
        made = library.with_suffix(".new")  # a process may have the old one open
        command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"priorities will be drawn by numpy: {done.stderr[-500:]}", file=sys.stderr)
            return
        made.replace(library)
        build_data["artifacts"].append(LIBRARY)
        if version == "standard":
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
