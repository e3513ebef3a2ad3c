"""The life of an agent in the foreground: from the first look at the manifests to the last word.

    Ctrl-C    the pods are stopped, gracefully; again: who has not ended by then goes on, and the agent ends
    SIGTERM   as a service manager sends it: the agent ends, the pods go on (or are stopped, where that was asked for)
    --once    ends by itself, when all pods have; the exit status is 0 only if all of them succeeded

A pod that is stopped here is not "stopped" for the next agent: what its manifest says holds again.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from podkeeper.app.build import Agent
from podkeeper.app.cli.run_screen import Screen
from podkeeper.app.local.board import Board
from podkeeper.app.local.gate import Gate
from podkeeper.app.local.printing import shown_name
from podkeeper.app.standalone import Room
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID

LOOK_SECONDS = 0.05
FLUSH_SECONDS = 2.0
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How a life is to end."""

    once: bool = False
    stop_pods_on_exit: bool = False
    again: str = "podkeeper run"  # the command that takes the pods up again
    pods_survive: bool = True  # whether there is anything left to take up
    places: str = ""  # where manifests are looked for


class _Word(Enum):
    """What is heard from outside."""

    INTERRUPT = auto()
    TERMINATE = auto()
    ALL_ENDED = auto()


class Life:
    """One agent, from its first breath to its last."""

    def __init__(self, agent: Agent, gate: Gate, screen: Screen, wishes: Wishes) -> None:
        self._agent = agent
        self._gate = gate
        self._screen = screen
        self._wishes = wishes
        self._board = Board(agent, gate)
        self._words: asyncio.Queue[_Word] = asyncio.Queue()
        self._ends: dict[str, str] = {}  # by name: the phases that pods ended with
        self._impatient = False

    async def run(
        self,
        problems: Callable[[], object],
        rooms: Iterable[Room] = (),
        spare_all: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Live, with what must live beside the agent. Returns the exit status.

        `problems` tells of bad manifests; `spare_all` lets pods go on that are being stopped.
        """
        self._agent.statuses.subscribe(lambda uid, status: self._screen.changed())
        async with self._signals(), asyncio.TaskGroup() as group:
            own = (self._screen.run(self._board), self._board.see_off(), self._watch())
            tasks = [group.create_task(each) for each in (self._agent.run(), *own, *(room() for room in rooms))]
            status = await self._end(problems)
            self._screen.close(self._board)
            await self._agent.flush(FLUSH_SECONDS)
            for task in tasks:
                task.cancel()
        if self._impatient and spare_all is not None:
            await spare_all()  # not before: an agent that lives would go on stopping them
        return status

    # ---- hearing ----

    @contextlib.asynccontextmanager
    async def _signals(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        heard = {
            signal.SIGINT: _Word.INTERRUPT,
            signal.SIGTERM: _Word.TERMINATE,
            signal.SIGHUP: _Word.TERMINATE,  # the terminal is gone: the pods need not go with it
        }
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            del heard[signal.SIGHUP]  # `nohup` asked for that
        for number, word in heard.items():
            loop.add_signal_handler(number, self._words.put_nowait, word)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    async def _watch(self) -> None:
        """Say what is to be expected; with --once, see when every pod has ended."""
        sources = [source.name for source in self._agent.ports.sources]
        while not self._agent.storage.has_seen(sources):
            await asyncio.sleep(LOOK_SECONDS)
        if not self._wishes.once:
            if not self._gate.pods():
                self._screen.say(f"There is no pod yet; manifests are looked for in {self._wishes.places}.")
            return
        endless = [shown_name(pod) for pod in self._gate.pods() if pod.spec.restart_policy in (None, "", "Always")]
        if endless:
            whose = f"{endless[0]} starts" if len(endless) == 1 else f"{', '.join(endless)} start"
            self._screen.say(
                f"note: {whose} again after every end (restartPolicy: Always), and --once waits for all pods to end."
            )
        while not self._all_ended():
            await asyncio.sleep(LOOK_SECONDS)
        self._words.put_nowait(_Word.ALL_ENDED)

    def _all_ended(self) -> bool:
        """Asked of all that the sources name: the agent may not have heard of the last of them yet.

        Who was stopped by a person does not count, however its containers end meanwhile; it is waited for.
        """
        if self._gate.leaving():
            return False
        held = self._gate.held()
        phases = {
            shown_name(pod): self._phase(uid)
            for pod in self._gate.pods()
            if (uid := PodUID(pod.metadata.uid or "")) not in held
        }
        self._ends = phases
        return all(phase in ("Succeeded", "Failed") for phase in phases.values())

    def _phase(self, uid: PodUID) -> str:
        status = self._agent.statuses.get_pod_status(uid)
        return "" if status is None else status.phase or ""

    # ---- ending ----

    async def _end(self, problems: Callable[[], object]) -> int:
        word = await self._words.get()
        if word is _Word.ALL_ENDED:
            return await self._ended(bool(problems()))
        if word is _Word.TERMINATE and not self._wishes.stop_pods_on_exit:
            self._tell_left("Only the agent ends, its pods go on running")
            return 0
        if await self._stop():
            return INTERRUPTED if self._wishes.once else 0
        self._impatient = True
        self._tell_left("Who has not ended by now goes on running")
        return INTERRUPTED

    async def _stop(self) -> bool:
        """Stop all pods; false: somebody lost patience."""
        self._gate.close()
        if self._board.leaving():
            self._screen.say("Stopping the pods. Ctrl-C again leaves them running.")
        while leaving := self._board.leaving():
            self._screen.stopping(leaving, self._board.now())
            self._screen.changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._words.get()
                    return False
        self._screen.look(self._board)
        self._screen.say("All pods are stopped.")
        return True

    async def _ended(self, has_problems: bool) -> int:
        """Say how it went, and clear away: the next run begins afresh."""
        good = [name for name, phase in self._ends.items() if phase == "Succeeded"]
        bad = [name for name, phase in self._ends.items() if phase != "Succeeded"]
        self._screen.close(self._board)
        self._gate.close()
        while self._board.leaving() and self._words.empty():
            await asyncio.sleep(LOOK_SECONDS)
        if not self._ends:
            self._screen.say("There was no pod to run.")
            return 1
        failed = f", {len(bad)} failed: {', '.join(bad)}" if bad else ""
        self._screen.say(f"All pods have ended: {len(good)} succeeded{failed}.")
        return 1 if bad or has_problems else 0

    def _tell_left(self, words: str) -> None:
        self._screen.close(self._board)
        alive = [shown_name(pod) for pod in self._board.pods() if _runs(pod)]
        if alive and self._wishes.pods_survive:
            self._screen.say(f"{words}: {', '.join(alive)}.")
            self._screen.say(f"Take them up again with: {self._wishes.again}")


def _runs(pod: Pod) -> bool:
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    return any(each.state.running is not None for each in statuses)
