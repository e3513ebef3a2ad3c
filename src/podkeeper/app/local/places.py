"""Where an agent keeps its things, and where its socket is found: the same answer for agent and command line.

    root      as root /var/lib/podkeeper, else $XDG_STATE_HOME/podkeeper (~/.local/state/podkeeper)
    socket    $PODKEEPER_SOCKET; as root /run/podkeeper/podkeeper.sock, else $XDG_RUNTIME_DIR/podkeeper/podkeeper.sock
              and, where there is no such directory of ours, podkeeper.sock in the root

Standard library only: every command imports this.
"""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "PODKEEPER_SOCKET"
SOCKET_NAME = "podkeeper.sock"
_LONGEST_SOCKET_PATH = 107  # what the kernel takes


def default_root(environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """Where an agent keeps what must survive it."""
    if _is_root(is_root):
        return Path("/var/lib/podkeeper")
    state = environment.get("XDG_STATE_HOME", "")
    # A relative path in these variables is to be ignored, says the XDG base directory specification.
    base = Path(state) if state.startswith("/") else Path(_home(environment), ".local", "state")
    return base / "podkeeper"


def default_socket(environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """Where an agent that was told nothing else listens."""
    if named := environment.get(SOCKET_VARIABLE):
        return Path(named)
    if _is_root(is_root):
        return Path("/run/podkeeper", SOCKET_NAME)
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime, "podkeeper") if _is_ours(runtime) else default_root(environment, is_root=False)
    return base / SOCKET_NAME


def socket_for(root: Path, environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """Where the agent of a root listens: one with a root of its own does so there, beside the usual one."""
    if root == default_root(environment, is_root=is_root) or environment.get(SOCKET_VARIABLE):
        return default_socket(environment, is_root=is_root)
    return root / SOCKET_NAME


def too_long(socket: Path) -> str:
    """Why a socket cannot be made at a path; empty when it can."""
    length = len(os.fsencode(socket))
    if length <= _LONGEST_SOCKET_PATH:
        return ""
    return (
        f"cannot listen on {socket}: the path has {length} bytes, and the kernel takes {_LONGEST_SOCKET_PATH}; "
        f"name a shorter one with --socket or {SOCKET_VARIABLE}"
    )


def _home(environment: Mapping[str, str]) -> str:
    if home := environment.get("HOME"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def _is_ours(directory: str) -> bool:
    """Whether a directory is there, and this user's: after `su` the variable names one of somebody else."""
    try:
        return directory.startswith("/") and os.stat(directory).st_uid == os.geteuid()
    except OSError:
        return False


def _is_root(told: bool | None) -> bool:
    return os.geteuid() == 0 if told is None else told
