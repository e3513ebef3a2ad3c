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

from podkeeper.app.agent import Agent
from podkeeper.app.cli.run_screen import Screen
from podkeeper.app.local.pod_queries import PodQueries
from podkeeper.app.local.pod_table import display_name
from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.app.standalone import BackgroundTask
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID

PROGRESS_SECONDS = 1.0  # how often to show the pods that are still stopping
FLUSH_SECONDS = 2.0
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitOptions:
    """The options of `podkeeper run` that affect its exit."""

    once: bool = False
    stop_pods_on_exit: bool = False
    run_command: str = "podkeeper run"  # the command that adopts the pods
    pods_survive: bool = True  # whether pods can run without the agent
    manifests: str = ""  # the files and directories of the manifests


class _ExitCause(Enum):
    INTERRUPT = auto()
    TERMINATE = auto()
    ALL_ENDED = auto()


class RunLifecycle:
    def __init__(
        self, agent: Agent, queries: PodQueries, stop_filter: StopFilter, screen: Screen, options: ExitOptions
    ) -> None:
        self._agent = agent
        self._queries = queries
        self._stop_filter = stop_filter
        self._screen = screen
        self._options = options
        self._causes: asyncio.Queue[_ExitCause] = asyncio.Queue()
        self._phases: dict[str, str] = {}  # the last phase of each pod, by name
        self._leaves_pods_running = False

    async def run(
        self,
        problems: Callable[[], object],
        background_tasks: Iterable[BackgroundTask] = (),
        cancel_stops: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Run the agent and the tasks beside it. Return the exit status.

        `problems` returns the invalid manifests. `cancel_stops` cancels the termination of pods that are stopping.
        """
        self._queries.subscribe(self._screen.pods_changed)
        async with self._signals(), asyncio.TaskGroup() as group:
            own = (self._screen.run(self._queries), self._queries.run(), self._watch())
            others = (start() for start in background_tasks)
            tasks = [group.create_task(each) for each in (self._agent.run(), *own, *others)]
            status = await self._end(problems)
            self._screen.close(self._queries)
            await self._agent.flush(FLUSH_SECONDS)
            for task in tasks:
                task.cancel()
        if self._leaves_pods_running and cancel_stops is not None:
            await cancel_stops()  # after the agent has ended, because a running agent would stop the pods again
        return status

    # ---- signals and --once ----

    @contextlib.asynccontextmanager
    async def _signals(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        causes = {
            signal.SIGINT: _ExitCause.INTERRUPT,
            signal.SIGTERM: _ExitCause.TERMINATE,
            signal.SIGHUP: _ExitCause.TERMINATE,  # the terminal was closed; pods must survive that
        }
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            del causes[signal.SIGHUP]  # started by `nohup`
        for number, cause in causes.items():
            loop.add_signal_handler(number, self._exit, cause)
        try:
            yield
        finally:
            for number in causes:
                loop.remove_signal_handler(number)

    def _exit(self, cause: _ExitCause) -> None:
        self._causes.put_nowait(cause)
        self._queries.notify()  # wakes up `_stop`, which waits for pods and signals

    async def _watch(self) -> None:
        """Print notes about the manifests. With --once, exit when all pods have terminated."""
        await self._queries.wait_for(self._agent.sources_ready)
        pods = self._stop_filter.pods()
        if not self._options.once:
            if not pods:
                self._screen.print_line(f"No pods yet. Watching for manifests in {self._options.manifests}.")
            return
        endless = [display_name(pod) for pod in pods if pod.spec.restart_policy in (None, "", "Always")]
        if endless:
            names = ", ".join(endless)
            self._screen.print_line(
                f"note: --once waits for all pods, but these restart forever (restartPolicy: Always): {names}"
            )
        await self._queries.wait_for(self._all_ended)
        self._exit(_ExitCause.ALL_ENDED)

    def _all_ended(self) -> bool:
        """Return whether all pods have terminated.

        Checks the pods of the sources, because the agent may not have received all of them yet. Pods that `podkeeper
        stop` is stopping must end too, but their exit codes do not count.
        """
        if self._stop_filter.terminating():
            return False
        stopped = self._stop_filter.stopped()
        self._phases = {
            display_name(pod): self._phase(uid)
            for pod in self._stop_filter.pods()
            if (uid := PodUID(pod.metadata.uid or "")) not in stopped
        }
        return all(phase in ("Succeeded", "Failed") for phase in self._phases.values())

    def _phase(self, uid: PodUID) -> str:
        status = self._agent.status_of(uid)
        return "" if status is None else status.phase or ""

    # ---- exit ----

    async def _end(self, problems: Callable[[], object]) -> int:
        cause = await self._causes.get()
        if cause is _ExitCause.ALL_ENDED:
            return await self._print_results(bool(problems()))
        if cause is _ExitCause.TERMINATE and not self._options.stop_pods_on_exit:
            self._print_running_pods()
            return 0
        if await self._stop():
            return INTERRUPTED if self._options.once else 0
        self._leaves_pods_running = True
        self._print_running_pods()
        return INTERRUPTED

    async def _stop(self) -> bool:
        """Stop all pods. Return false if a second signal arrived before they had stopped."""
        self._stop_filter.close()
        if self._queries.terminating():
            self._screen.print_line(
                "Stopping all pods. Press Ctrl-C again to exit and leave the remaining pods running."
            )
        while not self._stopped_or_interrupted():
            self._screen.show_stopping(self._queries)
            self._screen.pods_changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._queries.wait_for(self._stopped_or_interrupted)
        if self._queries.terminating():
            return False
        self._screen.update(self._queries)
        self._screen.print_line("All pods have stopped.")
        return True

    def _stopped_or_interrupted(self) -> bool:
        return not self._queries.terminating() or not self._causes.empty()

    async def _print_results(self, has_problems: bool) -> int:
        """Print the results and remove the pods, so that the next run starts from scratch. Return the exit status."""
        succeeded = [name for name, phase in self._phases.items() if phase == "Succeeded"]
        failed = [name for name, phase in self._phases.items() if phase != "Succeeded"]
        self._screen.close(self._queries)
        self._stop_filter.close()
        await self._queries.wait_for(self._stopped_or_interrupted)
        if not self._phases:
            self._screen.print_line("No pods found.")
            return 1
        failures = f", {len(failed)} failed: {', '.join(failed)}" if failed else ""
        self._screen.print_line(f"All pods have terminated: {len(succeeded)} succeeded{failures}.")
        return 1 if failed or has_problems else 0

    def _print_running_pods(self) -> None:
        self._screen.close(self._queries)
        running = [display_name(pod) for pod in self._queries.pods() if _runs(pod)]
        if running and self._options.pods_survive:
            self._screen.print_line(f"The agent exits. These pods keep running: {', '.join(running)}.")
            self._screen.print_line(f"To adopt them again, run: {self._options.run_command}")


def _runs(pod: Pod) -> bool:
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    return any(each.state.running is not None for each in statuses)
