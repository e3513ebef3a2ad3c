"""Kill a container runtime repeatedly at random times: `python -m tools.torture_runtime [--runtime crio]`.

One `podkeeper run --runtime cri` works on a directory of manifests, with its own containerd or CRI-O. It requires root
and the components that `tests/runtimes/cri/containerd.py` and `crio.py` list. In each round, pods are added, changed
and removed, and containers are killed. Meanwhile the runtime is killed (-9) and restarted at once, is down for seconds,
or hangs for seconds and then continues or is killed. The pods are those of `tools.torture`. By the containers'
start files, /proc and the runtime's lists:

* Nothing is doubled: at no time does a container run twice or a pod have two ready sandboxes.
* Nothing is lost: long-running containers keep their process, and a pod that was Ready is Ready since the same time. A
  killed container is restarted exactly once. Exception: if containerd is killed while it starts a container, it later
  kills the container and reports that it never started, so the container starts again.
* Each job completes exactly once, and its exit code is reported. Exception: if containerd is killed in the milliseconds
  between an exit and its record, it loses the exit code and reports 255 and Unknown. Podkeeper then does the same.
* All pods recover within a minute. At the end, no container, sandbox, cgroup, mount or non-empty shim of a pod is left.
  Exception: if containerd is killed just after it started a shim or mounted a network, it never removes these. They
  are counted and removed at the end.

One round in four does not wait for these checks. The same seed gives the same actions in the same order, at about the
same times.
"""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from podkeeper.model.errors import TryLater
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri import containerd, crio
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode
from tests.runtimes.cri.runtime_monitor import RuntimeMonitor, monitored
from tools.torture_agent import Broken, Torture
from tools.torture_observe import Progress, children_of, code_of, left_in, lines_of, reason_of
from tools.torture_pods import Kind, TorturePod

UNKNOWN_CODE, UNKNOWN_REASON = 255, "Unknown"
RUNTIMES: Mapping[str, tuple[Callable[[Path], CriNode], Callable[[], str | None]]] = {
    "containerd": (containerd.Containerd, containerd.missing),
    "crio": (crio.Crio, crio.missing),
}


class RuntimeTorture(Torture):
    """One agent on one directory, while its container runtime is killed and restarted."""

    image = BUSYBOX_IMAGE
    timeout_seconds = 60.0

    def __init__(self, place: Path, seed: int, node: CriNode) -> None:
        super().__init__(place, seed)
        self._node = node
        self._watch = _DuplicateWatch(node.socket)
        self.hangs = 0
        self.forgotten: set[str] = set()  # states of containers whose exit code the runtime lost
        self.leftovers = 0  # empty shims and mounts that the runtime lost

    def start(self) -> None:
        """Start the agent inside the namespaces of the runtime, where it can reach its pods."""
        with self._node.in_network():
            super().start()

    def _more_arguments(self) -> list[str]:
        return ["--runtime", "cri", "--runtime-endpoint", self._node.socket]

    # ---- Runtime ----

    def round(self) -> None:
        """Run some actions and one fault of the runtime, then usually check the state."""
        for _ in range(1 + self._chance.randrange(3)):
            self.action()
        time.sleep(self._chance.random())
        fault: Callable[[], None] = self._chance.choices((self._crash, self._outage, self._hang), (3, 2, 2))[0]
        fault()
        if self._chance.random() < 0.25:
            time.sleep(self._chance.random())
        else:
            self.check()

    def _crash(self) -> None:
        self._end_runtime()
        self._begin_runtime()

    def _outage(self) -> None:
        self._end_runtime()
        self._meanwhile()
        self._begin_runtime()

    def _hang(self) -> None:
        self._note(f"freeze {self._node.name}")
        self._node.freeze()
        self.hangs += 1
        self._meanwhile()
        if self._chance.random() < 0.5:
            self._note(f"thaw {self._node.name}")
            self._node.thaw()
        else:
            self._end_runtime()
            self._begin_runtime()

    def _meanwhile(self) -> None:
        for _ in range(self._chance.randrange(4)):
            time.sleep(self._chance.random())
            self.action()
        time.sleep(self._chance.random())

    def _end_runtime(self) -> None:
        self._note(f"kill {self._node.name}")
        self._node.kill()
        self.kills += 1

    def _begin_runtime(self) -> None:
        self._note(f"start {self._node.name}")
        asyncio.run(self._node.start_again())

    # ---- Checks ----

    def check(self) -> None:
        assert self._agent is not None
        if self._agent.poll() is not None:
            raise Broken(f"the agent exited unexpectedly with status {self._agent.returncode}")
        super().check()
        if doubled := self._watch.doubled():
            raise Broken("; ".join(doubled))

    def _most_starts(self, pod: TorturePod, container: str) -> int:
        unsettled = 0 if container in pod.seen else self.kills - pod.settled_at
        return super()._most_starts(pod, container) + pod.undone[container] + unsettled

    def _reports_code(self, container: Any, code: int) -> bool:
        if code_of(container) == UNKNOWN_CODE and reason_of(container) == UNKNOWN_REASON:
            self.forgotten.add(str(container.get("state")) + str(container.get("lastState")))
            return True
        return super()._reports_code(container, code)

    def _left(self) -> list[str]:
        return [
            *left_in(self._root, self._root),
            *(f"helper {pid}" for pid in self._node.helpers() if children_of(pid)),
            *(f"pod {name}" for name in asyncio.run(self._pods_of_runtime())),
        ]

    async def _pods_of_runtime(self) -> tuple[str, ...]:
        transport = GrpcTransport(self._node.socket)
        try:
            return await RuntimeMonitor(CriCalls(transport)).inspect()
        except TryLater as error:
            return (f"(unknown: {error})",)
        finally:
            await transport.close()

    def end(self) -> None:
        super().end()
        mounts = [line for line in lines_of("/proc/self/mountinfo") if f" {self._node.root}/" in line]
        self.leftovers = len(self._node.helpers()) + len(mounts)

    def clear_away(self) -> None:
        """After a failure, stop the agent and its pods. The end of the runtime removes the rest."""
        with suppress(OSError, AssertionError):
            self._node.thaw()
        super().clear_away()

    def close(self) -> None:
        self._watch.close()

    @property
    def inspections(self) -> int:
        """The number of inspections for duplicates."""
        return self._watch.inspections()


class _DuplicateWatch:
    """Inspects the runtime continuously in a thread, for containers and sandboxes that exist twice."""

    def __init__(self, socket: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._monitor: RuntimeMonitor | None = None
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._watch(socket),), daemon=True)
        self._over = asyncio.Event()
        self._thread.start()

    async def _watch(self, socket: str) -> None:
        async with monitored(socket) as self._monitor:
            await self._over.wait()

    def doubled(self) -> list[str]:
        return sorted(self._monitor.duplicates) if self._monitor is not None else []

    def inspections(self) -> int:
        return self._monitor.inspections if self._monitor is not None else 0

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


# ---- Command ----


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torture_runtime", description="Kill a runtime repeatedly.")
    parser.add_argument("--rounds", type=int, default=50, help="number of rounds [default: 50]")
    parser.add_argument("--seed", type=int, help="seed of the actions [default: random]")
    parser.add_argument("--runtime", choices=RUNTIMES, default="containerd", help="runtime [default: containerd]")
    options = parser.parse_args(arguments)
    make, missing = RUNTIMES[options.runtime]
    if (reason := missing()) is not None:
        print(f"cannot torture a runtime: {reason}", file=sys.stderr)
        return 1
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"torture-runtime: seed {seed}, {options.rounds} rounds", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cleanup below runs, too
    place = Path(tempfile.mkdtemp(prefix="podkeeper-torture-"))
    home = place / "c"
    home.mkdir()
    node = make(home)
    try:
        node.start()
        failed = _torture(place, seed, options.rounds, node)
    finally:
        node.stop()
    if not failed:
        shutil.rmtree(place, ignore_errors=True)
    return failed


def _torture(place: Path, seed: int, rounds: int, node: CriNode) -> int:
    torture, progress, begun, number = (
        RuntimeTorture(place, seed, node),
        Progress(rounds, sys.stderr),
        time.monotonic(),
        0,
    )
    try:
        for kind in Kind:
            torture.add(kind)
        torture.start()
        for number in range(1, rounds + 1):
            torture.round()
            progress.update(number, f"{len(torture.pods)} pods, {torture.kills} kills, {torture.hangs} hangs")
        torture.end()
    except BaseException as error:
        progress.end()
        torture.clear_away()
        if not isinstance(error, Broken):
            raise
        print(f"FAILED in round {number} of {rounds}, seed {seed}: {error}")
        print("Last actions:", *(f"    {action}" for action in torture.actions[-25:]), sep="\n")
        print(
            "Last lines of the agent's log:", *(f"    {line}" for line in lines_of(place / "agent.log")[-25:]), sep="\n"
        )
        print(f"All files are in {place}. To repeat, use the same rounds and runtime with SEED={seed}")
        return 1
    finally:
        torture.close()
    progress.end()
    print(
        f"torture-runtime: seed {seed}: {node.name} killed {torture.kills} times and hung {torture.hangs} times in "
        f"{time.monotonic() - begun:.0f} s; {torture.checks} checks, {torture.inspections} searches "
        f"for duplicates; {torture.strikes} containers killed, {torture.jobs} jobs, {len(torture.gone)} pods removed "
        f"or changed, {len(torture.forgotten)} exit codes and {torture.leftovers} empty shims and mounts lost by "
        f"{node.name}. Nothing was doubled or lost, every job ran once, and nothing is left."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
