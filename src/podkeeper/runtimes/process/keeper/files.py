"""Atomically replaced state files, and the identity of boots and processes.

Nothing is synced to disk. The files only have to survive the keeper and the agent. After a crash of the machine, none
of the described processes runs. So a reader must expect a missing or incomplete file.
"""

import json
import os
from typing import Any, Final

Json = dict[str, Any]

CONFIG_FILE: Final = "config.json"  # of a sandbox and of a container: the agent's request
STATE_FILE: Final = "state.json"  # of a container: its last state
STOPPED_FILE: Final = "stopped.json"  # of a sandbox: its keeper was shut down cleanly
KEEPER_FILE: Final = "keeper.json"
SOCKET_FILE: Final = "keeper.sock"
LOCK_FILE: Final = "keeper.lock"


def write_json(path: str, value: Json) -> None:
    """Replace a file. A reader sees the old content or the new."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, separators=(",", ":"))
    os.rename(temporary, path)


def read_json(path: str) -> Json | None:
    """Return a file's content, None if it is missing or torn."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def boot_id() -> str:
    """Return the kernel's ID of the current boot, "" if it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return the start time of a process in ticks since boot, 0 if it does not exist. With the PID, it is unique."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The last ")", because the name of a program may contain blanks and parentheses (proc(5)).
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
