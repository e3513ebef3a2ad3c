"""Measure a real `podkeeper run` from outside, through its socket and /proc.

quiet_node(root, manifests, words)   the agent with quiet pods, when they are all Ready
cpu_seconds, kib_of, processes       figures from /proc
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podkeeper.app.local.client import AgentNotRunning, LocalClient
from podkeeper.app.local.paths import SOCKET_NAME

GIVE_UP_SECONDS = 120.0

AGENT = (sys.executable, "-c", "from podkeeper.app.cli import main; main()")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class IdleNode:
    """An idle node."""

    agent: int  # process ID of the agent
    ready_seconds: float  # from the start of the agent until all pods were Ready
    ready_cpu_seconds: float  # CPU time of the agent until then, including its start


@contextmanager
def quiet_node(root: Path, manifests: Mapping[str, object], *words: str) -> Iterator[IdleNode]:
    """Run `podkeeper run` with idle pods. Yield when all are Ready, and stop them at the end."""
    folder = root / "manifests"
    folder.mkdir()
    for name, manifest in manifests.items():
        (folder / f"{name}.json").write_text(json.dumps(manifest))
    begun, count = time.monotonic(), len(manifests)
    with agent_process(folder, root, *words) as (process, client):
        while ready_pods(client) < count:
            if process.poll() is not None or time.monotonic() - begun > GIVE_UP_SECONDS:
                raise TimeoutError(f"timed out after {GIVE_UP_SECONDS:g} s: expected {count} Ready pods")
            time.sleep(0.1)
        yield IdleNode(process.pid, time.monotonic() - begun, cpu_seconds(process.pid))


@contextmanager
def agent_process(folder: Path, root: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], LocalClient]]:
    """Run `podkeeper run` during the block, then stop it and its pods."""
    words = [*AGENT, "run", str(folder), "--root", str(root / "r"), "--plain", *more]
    with open(root / "output", "wb") as output:
        agent = subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield agent, LocalClient(root / "r" / SOCKET_NAME)
    except BaseException:
        print((root / "output").read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        agent.send_signal(signal.SIGINT)
        try:
            agent.wait(GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def ready_pods(client: LocalClient) -> int:
    """Return the number of Ready pods."""
    try:
        pods = client.get("pods")["items"]
    except AgentNotRunning:
        return 0
    conditions = [each for pod in pods for each in pod["status"].get("conditions", ())]
    return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


# ---- Figures from /proc ----


def processes() -> Iterator[int]:
    """Return the IDs of all processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def message_of(pid: int) -> list[str]:
    """Return the command line of a process. Empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and of the children that it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def kib_of(pid: int, file: str, field: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
