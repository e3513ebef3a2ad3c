"""A real `podkeeper run`, seen from outside: through its socket and /proc. Shared by the benches of real pods.

quiet_node(root, manifests, words)   the agent with so many quiet pods, once they are all Ready
cpu_seconds, kib_of, processes       what /proc says
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

from podkeeper.app.local.client import LocalClient, NobodyAnswers
from podkeeper.app.local.places import SOCKET_NAME

GIVE_UP_SECONDS = 120.0

AGENT = (sys.executable, "-c", "from podkeeper.app.cli import main; main()")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Quiet:
    """A node at rest."""

    agent: int  # its process
    ready_seconds: float  # from the start of the agent until all pods were Ready
    ready_cpu_seconds: float  # what that had cost the agent, its own start included


@contextmanager
def quiet_node(root: Path, manifests: Mapping[str, object], *words: str) -> Iterator[Quiet]:
    """`podkeeper run` with pods that do nothing, from the moment when all are Ready; in the end they are stopped."""
    folder = root / "manifests"
    folder.mkdir()
    for name, manifest in manifests.items():
        (folder / f"{name}.json").write_text(json.dumps(manifest))
    begun, count = time.monotonic(), len(manifests)
    with agent_process(folder, root, *words) as (process, client):
        while ready_pods(client) < count:
            if process.poll() is not None or time.monotonic() - begun > GIVE_UP_SECONDS:
                raise TimeoutError(f"not within {GIVE_UP_SECONDS:g} s: {count} pods of manifests are Ready")
            time.sleep(0.1)
        yield Quiet(process.pid, time.monotonic() - begun, cpu_seconds(process.pid))


@contextmanager
def agent_process(folder: Path, root: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], LocalClient]]:
    """`podkeeper run`, until the block ends; then its pods are stopped."""
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
    """How many pods are Ready."""
    try:
        pods = client.get("pods")["items"]
    except NobodyAnswers:
        return 0
    conditions = [each for pod in pods for each in pod["status"].get("conditions", ())]
    return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


# ---- /proc ----


def processes() -> Iterator[int]:
    """All processes there are."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of the children it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def kib_of(pid: int, file: str, field: str) -> int:
    """One line of a file in /proc."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
