"""Small files that must be whole or absent, and what tells one boot and one process from another.

Nothing is synced to disk: these files outlive processes, and after a crash of the machine nothing runs that they tell
of. A reader must expect that such a file is missing or torn.
"""

import json
import os
from typing import Any, Final

Json = dict[str, Any]

CONFIG_FILE: Final = "config.json"  # of a sandbox and of a container: what the agent asked for
STATE_FILE: Final = "state.json"  # of a container: where it stands
STOPPED_FILE: Final = "stopped.json"  # of a sandbox: its keeper has left as it was told to
KEEPER_FILE: Final = "keeper.json"
SOCKET_FILE: Final = "keeper.sock"
LOCK_FILE: Final = "keeper.lock"


def write_json(path: str, value: Json) -> None:
    """Replace a file; a reader sees the old content or the new."""
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(value, file, separators=(",", ":"))
    os.rename(fresh, path)


def read_json(path: str) -> Json | None:
    """A file's content; None when there is none, or none that is whole."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def boot_id() -> str:
    """What names the machine's present life; "" where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """When a process began, in ticks since the boot: with its pid that names it. 0: there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
