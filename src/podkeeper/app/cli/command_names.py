"""The command name and options for messages that show users what to type.

Standard library only, because every command imports this module.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

from podkeeper.app.local.paths import SOCKET_VARIABLE, default_root

NAME = "podkeeper"


def own_name() -> str:
    """Return `podkeeper`, or the path of the program if it is not on the PATH."""
    program = Path(sys.argv[0])
    if program.name != NAME or not program.exists():
        return NAME
    found = shutil.which(NAME)
    if found is not None and os.path.samefile(found, program):
        return NAME
    relative = os.path.relpath(program)
    return relative if not relative.startswith("..") else str(program)


def which_agent(root: Path, socket_path: Path | None = None) -> str:
    """Return the option, with a leading space, that other commands need to find this agent, or ""."""
    if socket_path is not None:
        return f" --socket {shlex.quote(str(socket_path))}"
    if os.environ.get(SOCKET_VARIABLE) or root == default_root():
        return ""
    return f" --root {shlex.quote(str(root))}"
