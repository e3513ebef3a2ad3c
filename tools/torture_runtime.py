"""Kill a container runtime at random moments, again and again: `python -m tools.torture_runtime [--runtime crio]`.

One `podkeeper run --runtime cri` works on a folder of manifests, with a containerd or CRI-O of its own (root; what else
is needed, `tests/runtimes/cri/containerd.py` and `crio.py` say). In each round pods come, change and go and containers
are killed, while the runtime is killed (-9) and started again at once, stays away for seconds, or hangs for seconds and
is killed then or goes on. The pods, and what must hold of them, are those of `tools.torture`, where the agent is killed
instead. Then must hold, by what the containers themselves wrote down, by /proc and by the runtime's own lists:

* nothing is doubled: no container of a pod runs twice, no pod has two ready sandboxes, at any moment;
* nothing is lost: what goes on for ever is the same process as before, a pod that was Ready is Ready since the same
  moment, what was killed is started again exactly once (a containerd that is killed while it starts a container ends
  that when it is back, and says that it never began: so it begins once more);
* a job came to its end exactly once, and its exit code is told (a containerd that is killed within the milliseconds
  between an exit and noting it down forgets the code: it then says 255 and that it does not know, and so do we);
* all is right again within a minute, and in the end nothing is left: no container, sandbox, cgroup or mount of a pod,
  and no shim that has anything in it. (A containerd that is killed just after it started a shim, or mounted a network,
  forgets that, and it stays, empty, whatever is stopped and removed: counted, and cleared away in the end.)

One round in four does not wait for that. A seed gives the same deeds in the same order; the moments are as near as a
machine allows.
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
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri import containerd, crio
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode
from tests.runtimes.cri.witness import Witness, witnessed
from tools.torture_pods import Kind, Tortured
from tools.torture_seen import Progress, children_of, code_of, left_in, lines_of, reason_of
from tools.tortured_agent import Broken, Torture

UNKNOWN_CODE, UNKNOWN_REASON = 255, "Unknown"
RUNTIMES: Mapping[str, tuple[Callable[[Path], CriNode], Callable[[], str | None]]] = {
    "containerd": (containerd.Containerd, containerd.missing),
    "crio": (crio.Crio, crio.missing),
}


class RuntimeTorture(Torture):
    """One agent on one folder, and one life of its container runtime after the other."""

    image = BUSYBOX_IMAGE
    patience_seconds = 60.0

    def __init__(self, place: Path, seed: int, node: CriNode) -> None:
        super().__init__(place, seed)
        self._node = node
        self._watch = _Watch(node.socket)
        self.hangs = 0
        self.forgotten: set[str] = set()  # exit codes that the runtime lost
        self.leftovers = 0  # empty helpers and mounts that the runtime lost

    def start(self) -> None:
        """Start the agent, where it can reach its pods."""
        with self._node.inside():
            super().start()

    def _more_words(self) -> list[str]:
        return ["--runtime", "cri", "--runtime-endpoint", self._node.socket]

    # ---- the runtime ----

    def round(self) -> None:
        """Some deeds, trouble for the runtime at some moment, more deeds, and a look at how things are."""
        for _ in range(1 + self._chance.randrange(3)):
            self.deed()
        time.sleep(self._chance.random())
        trouble: Callable[[], None] = self._chance.choices((self._crash, self._outage, self._hang), (3, 2, 2))[0]
        trouble()
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
        """What happens within a few seconds."""
        for _ in range(self._chance.randrange(4)):
            time.sleep(self._chance.random())
            self.deed()
        time.sleep(self._chance.random())

    def _end_runtime(self) -> None:
        self._note(f"kill {self._node.name}")
        self._node.kill()
        self.kills += 1

    def _begin_runtime(self) -> None:
        self._note(f"start {self._node.name}")
        asyncio.run(self._node.start_again())

    # ---- how things are ----

    def check(self) -> None:
        """Wait until everything is as it should be."""
        assert self._agent is not None
        if self._agent.poll() is not None:
            raise Broken(f"the agent ended by itself, with {self._agent.returncode}")
        super().check()
        if doubled := self._watch.doubled():
            raise Broken("; ".join(doubled))

    def _most_starts(self, pod: Tortured, container: str) -> int:
        unsettled = 0 if container in pod.seen else self.kills - pod.settled_at
        return super()._most_starts(pod, container) + pod.undone[container] + unsettled

    def _is_told(self, container: Any, code: int) -> bool:
        if code_of(container) == UNKNOWN_CODE and reason_of(container) == UNKNOWN_REASON:
            self.forgotten.add(str(container.get("state")) + str(container.get("lastState")))
            return True
        return super()._is_told(container, code)

    def _left(self) -> list[str]:
        return [
            *left_in(self._root, self._root),
            *(f"helper {pid}" for pid in self._node.helpers() if children_of(pid)),
            *(f"pod {name}" for name in asyncio.run(self._pods_of_runtime())),
        ]

    async def _pods_of_runtime(self) -> tuple[str, ...]:
        transport = GrpcTransport(self._node.socket)
        try:
            return await Witness(Calls(transport)).look()
        except TryLater as error:
            return (f"(unknown: {error})",)
        finally:
            await transport.close()

    def end(self) -> None:
        """Stop the pods, and see that nothing is left."""
        super().end()
        mounts = [line for line in lines_of("/proc/self/mountinfo") if f" {self._node.root}/" in line]
        self.leftovers = len(self._node.helpers()) + len(mounts)

    def clear_away(self) -> None:
        """After a failure: let the agent stop its pods; the runtime's own end does the rest."""
        with suppress(OSError, AssertionError):
            self._node.thaw()
        super().clear_away()

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()

    @property
    def looks(self) -> int:
        """How often somebody looked whether anything is doubled."""
        return self._watch.looks()


class _Watch:
    """Looks at the runtime all the time, in a thread: is anything there twice?"""

    def __init__(self, socket: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._witness: Witness | None = None
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._look(socket),), daemon=True)
        self._over = asyncio.Event()
        self._thread.start()

    async def _look(self, socket: str) -> None:
        async with witnessed(socket) as self._witness:
            await self._over.wait()

    def doubled(self) -> list[str]:
        return sorted(self._witness.doubled) if self._witness is not None else []

    def looks(self) -> int:
        return self._witness.looks if self._witness is not None else 0

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


# ---- the command ----


def main(arguments: list[str]) -> int:
    """Torture, and tell how it went."""
    parser = argparse.ArgumentParser(prog="python -m tools.torture_runtime", description="Kill a runtime, repeatedly.")
    parser.add_argument("--rounds", type=int, default=50, help="how often [50]")
    parser.add_argument("--seed", type=int, help="which deeds [another one each time]")
    parser.add_argument("--runtime", choices=RUNTIMES, default="containerd", help="which one [containerd]")
    options = parser.parse_args(arguments)
    make, missing = RUNTIMES[options.runtime]
    if (reason := missing()) is not None:
        print(f"cannot torture a runtime: {reason}", file=sys.stderr)
        return 1
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"torture-runtime: seed {seed}, {options.rounds} rounds", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is cleared away then too
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
            progress.tell(number, f"{len(torture.pods)} pods, {torture.kills} kills, {torture.hangs} hangs")
        torture.end()
    except BaseException as error:
        progress.end()
        torture.clear_away()
        if not isinstance(error, Broken):
            raise
        print(f"FAILED in round {number} of {rounds}, seed {seed}: {error}")
        print("What was done last:", *(f"    {deed}" for deed in torture.deeds[-25:]), sep="\n")
        print("What the agent said last:", *(f"    {line}" for line in lines_of(place / "agent.log")[-25:]), sep="\n")
        print(f"Everything else is in {place}. Again: the same rounds and runtime with SEED={seed}")
        return 1
    finally:
        torture.close()
    progress.end()
    print(
        f"torture-runtime: seed {seed}: {node.name} killed {torture.kills} times and hung {torture.hangs} times in "
        f"{time.monotonic() - begun:.0f} s; {torture.checks} times everything was looked at, {torture.looks} times "
        f"whether anything is doubled; {torture.strikes} containers killed, {torture.jobs} jobs, {len(torture.gone)} "
        f"pods taken away or changed, {len(torture.forgotten)} exit codes and {torture.leftovers} empty helpers and "
        f"mounts forgotten by {node.name}. Nothing doubled, nothing lost, every job done once, nothing left."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
