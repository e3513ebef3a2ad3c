"""How this command line is called from here, so that what it tells people to type works as it stands.

Standard library only: every command may need it.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

from podkeeper.app.local.places import SOCKET_VARIABLE, default_root

NAME = "podkeeper"


def own_name() -> str:
    """`podkeeper`, or the path it was called by where the shell would not find it."""
    called = Path(sys.argv[0])
    if called.name != NAME or not called.exists():
        return NAME
    found = shutil.which(NAME)
    if found is not None and os.path.samefile(found, called):
        return NAME
    near = os.path.relpath(called)
    return near if not near.startswith("..") else str(called)


def which_agent(root: Path, socket_path: Path | None = None) -> str:
    """The option, with a space before it, by which other commands find an agent; empty where they need none."""
    if socket_path is not None:
        return f" --socket {shlex.quote(str(socket_path))}"
    if os.environ.get(SOCKET_VARIABLE) or root == default_root():
        return ""
    return f" --root {shlex.quote(str(root))}"
