"""Bind mounts, as a container runtime or an administrator creates them."""

import ctypes
import os
from pathlib import Path

_BIND = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def bind(source: Path, target: Path) -> None:
    """Bind a file or directory to another path."""
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_BIND), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))
