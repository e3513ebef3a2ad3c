"""Run an agent in the foreground and handle signals and --once.

    Ctrl-C          stop all pods gracefully, then exit
    Ctrl-C twice    exit and leave the remaining pods running
    SIGTERM         exit and leave all pods running (with --stop-pods-on-exit: stop them first)
    --once          exit when all pods have terminated, with status 0 only if all of them succeeded

The next agent starts the pods that were stopped here again. Only `podkeeper stop` is permanent.
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
    """Options of `podkeeper run` about its end."""

    once: bool = False
    stop_pods_on_exit: bool = False
    again: str = "podkeeper run"  # the command that adopts the pods
    pods_survive: bool = True  # whether pods can run without the agent
    places: str = ""  # the files and directories of the manifests


class _Word(Enum):
    INTERRUPT = auto()
    TERMINATE = auto()
    ALL_ENDED = auto()


class Life:
    def __init__(self, agent: Agent, gate: Gate, screen: Screen, wishes: Wishes) -> None:
        self._agent = agent
        self._gate = gate
        self._screen = screen
        self._wishes = wishes
        self._board = Board(agent, gate)
        self._words: asyncio.Queue[_Word] = asyncio.Queue()
        self._ends: dict[str, str] = {}  # the last phase of each pod, by name
        self._impatient = False

    async def run(
        self,
        problems: Callable[[], object],
        rooms: Iterable[Room] = (),
        spare_all: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Run the agent and the `rooms` beside it. Returns the exit status.

        `problems` returns the invalid manifests. `spare_all` cancels the termination of pods that are stopping.
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
            await spare_all()  # after the agent's end, because a running agent would continue to stop them
        return status

    # ---- signals and --once ----

    @contextlib.asynccontextmanager
    async def _signals(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        heard = {
            signal.SIGINT: _Word.INTERRUPT,
            signal.SIGTERM: _Word.TERMINATE,
            signal.SIGHUP: _Word.TERMINATE,  # the terminal was closed; pods must survive that
        }
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            del heard[signal.SIGHUP]  # started by `nohup`
        for number, word in heard.items():
            loop.add_signal_handler(number, self._words.put_nowait, word)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    async def _watch(self) -> None:
        """Print notes about the manifests. With --once, wait until all pods have terminated."""
        sources = [source.name for source in self._agent.ports.sources]
        while not self._agent.storage.has_seen(sources):
            await asyncio.sleep(LOOK_SECONDS)
        if not self._wishes.once:
            if not self._gate.pods():
                self._screen.say(f"No pods yet. Watching for manifests in {self._wishes.places}.")
            return
        endless = [shown_name(pod) for pod in self._gate.pods() if pod.spec.restart_policy in (None, "", "Always")]
        if endless:
            names = ", ".join(endless)
            self._screen.say(
                f"note: --once waits for all pods, but these restart forever (restartPolicy: Always): {names}"
            )
        while not self._all_ended():
            await asyncio.sleep(LOOK_SECONDS)
        self._words.put_nowait(_Word.ALL_ENDED)

    def _all_ended(self) -> bool:
        """Return whether all pods have terminated.

        Checks the pods of the sources, because the agent may not have received the last of them yet. Waits for pods
        that are being stopped by `podkeeper stop`, but does not count how they end.
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

    # ---- exit ----

    async def _end(self, problems: Callable[[], object]) -> int:
        word = await self._words.get()
        if word is _Word.ALL_ENDED:
            return await self._ended(bool(problems()))
        if word is _Word.TERMINATE and not self._wishes.stop_pods_on_exit:
            self._tell_left("The agent exits. These pods keep running")
            return 0
        if await self._stop():
            return INTERRUPTED if self._wishes.once else 0
        self._impatient = True
        self._tell_left("The agent exits. These pods keep running")
        return INTERRUPTED

    async def _stop(self) -> bool:
        """Stop all pods. Returns false if a second signal arrived before they had stopped."""
        self._gate.close()
        if self._board.leaving():
            self._screen.say("Stopping all pods. Press Ctrl-C again to exit and leave the remaining pods running.")
        while leaving := self._board.leaving():
            self._screen.stopping(leaving, self._board.now())
            self._screen.changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._words.get()
                    return False
        self._screen.look(self._board)
        self._screen.say("All pods have stopped.")
        return True

    async def _ended(self, has_problems: bool) -> int:
        """Print the results and remove the pods, so that the next run starts from scratch. Returns the exit status."""
        good = [name for name, phase in self._ends.items() if phase == "Succeeded"]
        bad = [name for name, phase in self._ends.items() if phase != "Succeeded"]
        self._screen.close(self._board)
        self._gate.close()
        while self._board.leaving() and self._words.empty():
            await asyncio.sleep(LOOK_SECONDS)
        if not self._ends:
            self._screen.say("No pods found.")
            return 1
        failed = f", {len(bad)} failed: {', '.join(bad)}" if bad else ""
        self._screen.say(f"All pods have terminated: {len(good)} succeeded{failed}.")
        return 1 if bad or has_problems else 0

    def _tell_left(self, words: str) -> None:
        self._screen.close(self._board)
        alive = [shown_name(pod) for pod in self._board.pods() if _runs(pod)]
        if alive and self._wishes.pods_survive:
            self._screen.say(f"{words}: {', '.join(alive)}.")
            self._screen.say(f"To adopt them again, run: {self._wishes.again}")


def _runs(pod: Pod) -> bool:
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    return any(each.state.running is not None for each in statuses)
