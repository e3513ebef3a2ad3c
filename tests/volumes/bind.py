"""Bind mounts, as a container's runtime or an administrator would make them."""

import ctypes
import os
from pathlib import Path

_BIND = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def bind(source: Path, target: Path) -> None:
    """Let a file or directory appear at another place."""
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_BIND), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))
