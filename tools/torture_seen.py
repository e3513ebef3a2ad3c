"""What the torture sees: statuses as the agent shows them, and /proc and cgroups as they are; and how it goes, told."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from podkeeper.host.cgroups import own_root
from tools.torture_pods import Tortured

Processes = Mapping[tuple[str, str], list[tuple[int, int]]]
"""By version of a pod and container: its first processes, each by pid and start."""


def names_of(pod: Tortured) -> list[str]:
    """The containers of a pod, of any kind."""
    spec = pod.manifest["spec"]
    return [each["name"] for each in (*spec.get("initContainers", ()), *spec["containers"])]


def is_leaving(pod: Any) -> bool:
    """Whether a pod that is shown is being stopped."""
    return "deletionTimestamp" in pod["metadata"]


def status_of(pod: Tortured, shown: Mapping[str, Any]) -> Any:
    """Its status; None: it, or this version of it, is not shown."""
    found = shown.get(pod.name)
    if found is None or found["spec"]["containers"][0]["command"][-2] != pod.version:
        return None
    return found.get("status", {})


def containers_of(status: Any) -> dict[str, Any]:
    """The statuses of its containers, by name."""
    every = (status or {}).get("initContainerStatuses", []) + (status or {}).get("containerStatuses", [])
    return {each["name"]: each for each in every}


def ready_of(status: Any) -> tuple[str, str]:
    """Its condition Ready, and since when."""
    for each in status.get("conditions", ()):
        if each["type"] == "Ready":
            return each["status"], each.get("lastTransitionTime", "")
    return "", ""


def code_of(container: Any) -> int | None:
    """How it ended, the last time if it runs again; None: it never did."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        if "terminated" in state:
            return int(state["terminated"]["exitCode"])
    return None


def reason_of(container: Any) -> str:
    """Why it ended, the last time if it runs again; empty: it never did, or nobody says."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        if "terminated" in state:
            return str(state["terminated"].get("reason", ""))
    return ""


def brief(status: Any) -> str:
    """What matters of a status, for people."""
    told = {
        name: (each["restartCount"], each.get("state"), each.get("lastState"))
        for name, each in containers_of(status).items()
    }
    return f"{status.get('phase')}, {ready_of(status)}, {told}"


def first_processes(mark: str) -> Processes:
    """The first process of every container of this torture."""
    found: dict[int, tuple[str, str]] = {}
    parents: dict[int, tuple[int, int]] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if mark not in words:
                continue
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        at = words.index(mark)
        if fields[0] not in "ZX":
            found[pid] = (words[at + 1], words[at + 2])
            parents[pid] = (int(fields[1]), int(fields[19]))
    by_container = defaultdict(list)
    for pid, who in found.items():
        parent, ticks = parents[pid]
        if found.get(parent) != who:  # else it is a fork that will be somebody else in a moment
            by_container[who].append((pid, ticks))
    return by_container


def cgroups_of(root: Path) -> list[str]:
    """The cgroups of an agent, its pods' among them."""
    name = f"/{own_root(str(root))}"
    return [place for place, _, _ in os.walk("/sys/fs/cgroup") if f"{place}/".find(f"{name}/") >= 0]


def keepers_of(root: Path) -> list[int]:
    """Processes that keep pods, or would."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in found if link_of(f"/proc/{pid}/cwd").startswith(str(root / "runtime"))]


def children_of(pid: int) -> list[int]:
    """The processes that a process began, or has taken in."""
    found = [task / "children" for task in Path(f"/proc/{pid}/task").glob("*")]
    return [int(word) for path in found for line in lines_of(path) for word in line.split()]


def left_in(place: Path, root: Path) -> list[str]:
    """What still lies about of an agent's pods."""
    return [
        *(f"a mount at {line.split()[4]}" for line in lines_of("/proc/self/mountinfo") if str(place) in line),
        *(f"sandbox {path.name}" for path in root.glob("runtime/sandboxes/*")),
        *(f"files of pod {path.name}" for path in root.glob("pods/*")),
        *(path for path in cgroups_of(root) if "/pod" in path.rpartition("/podkeeper-")[2]),
    ]


def lines_of(path: str | Path) -> list[str]:
    """The lines of a file; none: there is no such file."""
    try:
        return Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []


def link_of(path: str) -> str:
    """Where a link leads; empty: there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Progress:
    """One line that changes on a terminal; elsewhere a line now and then."""

    def __init__(self, rounds: int, out: TextIO) -> None:
        self._rounds = rounds
        self._out = out
        self._live = out.isatty()

    def tell(self, number: int, so_far: str) -> None:
        """After each round."""
        text = f"round {number}/{self._rounds}: {so_far}"
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
        elif number % 20 == 0:
            self._out.write(f"{text}\n")
        self._out.flush()

    def end(self) -> None:
        """What comes next has a line of its own."""
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()
