"""Default paths of the agent's root and socket.

    root      as root: /var/lib/podkeeper, otherwise $XDG_STATE_HOME/podkeeper (~/.local/state/podkeeper)
    socket    $PODKEEPER_SOCKET, or
              as root: /run/podkeeper/podkeeper.sock, otherwise $XDG_RUNTIME_DIR/podkeeper/podkeeper.sock, or
              podkeeper.sock in the root, if the user has no such runtime directory

Standard library only, because every command imports this module.
"""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "PODKEEPER_SOCKET"
SOCKET_NAME = "podkeeper.sock"
_LONGEST_SOCKET_PATH = 107  # bytes; the kernel's limit (sun_path, without the final NUL)


def default_root(environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """Return the default directory for the agent's data."""
    if _is_root(is_root):
        return Path("/var/lib/podkeeper")
    state = environment.get("XDG_STATE_HOME", "")
    # The XDG base directory specification requires that relative paths are ignored.
    base = Path(state) if state.startswith("/") else Path(_home(environment), ".local", "state")
    return base / "podkeeper"


def default_socket(environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """Return the socket of an agent without --root and --socket."""
    if named := environment.get(SOCKET_VARIABLE):
        return Path(named)
    if _is_root(is_root):
        return Path("/run/podkeeper", SOCKET_NAME)
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime, "podkeeper") if _is_own(runtime) else default_root(environment, is_root=False)
    return base / SOCKET_NAME


def socket_for(root: Path, environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """Return the socket of the agent with this root. With a non-default root, the socket is in that root."""
    if root == default_root(environment, is_root=is_root) or environment.get(SOCKET_VARIABLE):
        return default_socket(environment, is_root=is_root)
    return root / SOCKET_NAME


def path_length_error(socket: Path) -> str:
    """Return the error if the path is too long for a socket, otherwise ""."""
    length = len(os.fsencode(socket))
    if length <= _LONGEST_SOCKET_PATH:
        return ""
    return (
        f"cannot listen on {socket}: the path has {length} bytes, but the kernel allows {_LONGEST_SOCKET_PATH}; "
        f"use a shorter path with --socket or {SOCKET_VARIABLE}"
    )


def _home(environment: Mapping[str, str]) -> str:
    if home := environment.get("HOME"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def _is_own(directory: str) -> bool:
    """Return whether a directory exists and belongs to this user. After `su`, it may belong to another user."""
    try:
        return directory.startswith("/") and os.stat(directory).st_uid == os.geteuid()
    except OSError:
        return False


def _is_root(override: bool | None) -> bool:
    return os.geteuid() == 0 if override is None else override
