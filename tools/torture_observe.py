"""Observations of the torture tools: statuses from the agent, /proc, cgroups; and progress output."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from podkeeper.host.cgroups import own_root
from tools.torture_pods import TorturePod

Processes = Mapping[tuple[str, str], list[tuple[int, int]]]
"""By pod version and container: the first processes, each with PID and start time."""


def names_of(pod: TorturePod) -> list[str]:
    """Return the names of all containers of a pod, including init containers."""
    spec = pod.manifest["spec"]
    return [each["name"] for each in (*spec.get("initContainers", ()), *spec["containers"])]


def is_leaving(pod: Any) -> bool:
    """Return whether a reported pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def status_of(pod: TorturePod, shown: Mapping[str, Any]) -> Any:
    """Return the status, or None if this version of the pod is not reported."""
    found = shown.get(pod.name)
    if found is None or found["spec"]["containers"][0]["command"][-2] != pod.version:
        return None
    return found.get("status", {})


def containers_of(status: Any) -> dict[str, Any]:
    """Return the container statuses by name."""
    every = (status or {}).get("initContainerStatuses", []) + (status or {}).get("containerStatuses", [])
    return {each["name"]: each for each in every}


def ready_of(status: Any) -> tuple[str, str]:
    """Return the status of the Ready condition and its last transition time."""
    for each in status.get("conditions", ()):
        if each["type"] == "Ready":
            return each["status"], each.get("lastTransitionTime", "")
    return "", ""


def code_of(container: Any) -> int | None:
    """Return the latest exit code, or None if the container has never exited."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        if "terminated" in state:
            return int(state["terminated"]["exitCode"])
    return None


def reason_of(container: Any) -> str:
    """Return the reason of the latest exit. Empty if there is none."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        if "terminated" in state:
            return str(state["terminated"].get("reason", ""))
    return ""


def brief(status: Any) -> str:
    """Return a short text for a status."""
    reported = {
        name: (each["restartCount"], each.get("state"), each.get("lastState"))
        for name, each in containers_of(status).items()
    }
    return f"{status.get('phase')}, {ready_of(status)}, {reported}"


def first_processes(mark: str) -> Processes:
    """Return the first process of every container of this run."""
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
    for pid, container in found.items():
        parent, ticks = parents[pid]
        if found.get(parent) != container:  # otherwise a child of the first process
            by_container[container].append((pid, ticks))
    return by_container


def cgroups_of(root: Path) -> list[str]:
    """Return the cgroups of an agent and its pods."""
    name = f"/{own_root(str(root))}"
    return [place for place, _, _ in os.walk("/sys/fs/cgroup") if f"{place}/".find(f"{name}/") >= 0]


def keepers_of(root: Path) -> list[int]:
    """Return the keeper processes of an agent."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in found if link_of(f"/proc/{pid}/cwd").startswith(str(root / "runtime"))]


def children_of(pid: int) -> list[int]:
    """Return the children of a process, including adopted ones."""
    found = [task / "children" for task in Path(f"/proc/{pid}/task").glob("*")]
    return [int(word) for path in found for line in lines_of(path) for word in line.split()]


def left_in(place: Path, root: Path) -> list[str]:
    """Return mounts, sandboxes, files and cgroups that are left of an agent's pods."""
    return [
        *(f"a mount at {line.split()[4]}" for line in lines_of("/proc/self/mountinfo") if str(place) in line),
        *(f"sandbox {path.name}" for path in root.glob("runtime/sandboxes/*")),
        *(f"files of pod {path.name}" for path in root.glob("pods/*")),
        *(path for path in cgroups_of(root) if "/pod" in path.rpartition("/podkeeper-")[2]),
    ]


def lines_of(path: str | Path) -> list[str]:
    """Return the lines of a file. Empty if the file does not exist."""
    try:
        return Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []


def link_of(path: str) -> str:
    """Return the target of a link. Empty if the link does not exist."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Progress:
    """Progress output: one changing line on a terminal, otherwise a line every 20 rounds."""

    def __init__(self, rounds: int, out: TextIO) -> None:
        self._rounds = rounds
        self._out = out
        self._live = out.isatty()

    def update(self, number: int, so_far: str) -> None:
        text = f"round {number}/{self._rounds}: {so_far}"
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
        elif number % 20 == 0:
            self._out.write(f"{text}\n")
        self._out.flush()

    def end(self) -> None:
        """Clear the line, so that the next output starts on it."""
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()
