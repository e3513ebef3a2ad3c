"""Sync loop: handle messages one after the other, sync pods when they are due.

    inbox: updates, lifecycle events, probe results --> handlers --> workers
    inbox: due syncs, passed deadlines -------------------^

Input: the messages and due syncs of `engine.inbox`. Output: calls of the handlers, in the order of the messages.

The loop yields to other tasks between two pods, so that an update with ten thousand pods delays no other task. It does
not poll: it wakes up when a sync is due. While the runtime is unhealthy, messages wait in the inbox and no new work is
started. Health checks are then repeated with backoff. Housekeeping runs concurrently, in full once all sources are
ready. Kubelet counterparts: `syncLoop` and `syncLoopIteration` in pkg/kubelet/kubelet.go.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter
from podkeeper.concurrency.once import LogOnce
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.inbox import LoopInbox, LoopMessage, StaticPodEnded
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.model.messages import LifecycleEvent, PodUpdate, ProbeUpdate
from podkeeper.ports.clock import Clock

log = logging.getLogger(__name__)

PODS_PER_YIELD = 32  # pods handled before other tasks may run
DUE_MARGIN_SECONDS = 0.001  # sleep a little longer, because the queue returns a pod only strictly after its due time
# The kubelet checks its runtime every 5 s as well.
HEALTH_PERIOD_SECONDS = 5.0
# As in the kubelet's syncLoop: 100 ms, doubling to 5 s.
UNHEALTHY_PERIOD = GrowingDelay(first_seconds=0.1, longest_seconds=5.0)


class SyncLoop:
    def __init__(
        self,
        *,
        handlers: SyncHandlers,
        inbox: LoopInbox,
        deadlines: ActiveDeadlines,
        housekeeping: Housekeeping,
        runtime_state: RuntimeState,
        clock: Clock,
    ) -> None:
        self._handlers = handlers
        self._inbox = inbox
        self._deadlines = deadlines
        self._housekeeping = housekeeping
        self._runtime_state = runtime_state
        self._clock = clock
        self._steps = 0
        self._subscribers: list[Callable[[], None]] = []
        self._healthy = asyncio.Event()

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """Call the subscriber after each handled pod update and after each removal by housekeeping."""
        self._subscribers.append(subscriber)
        self._housekeeping.subscribe(subscriber)

    def health(self) -> str | None:
        """Return why the loop handles no messages, or None."""
        return None if self._healthy.is_set() else self._runtime_state.runtime_error

    async def run(self) -> None:
        """Handle messages and due syncs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._check_runtime(), name="sync loop: runtime")
            group.create_task(self._handle_messages(), name="sync loop: messages")
            group.create_task(self._run_due_syncs(), name="sync loop: due syncs")
            housekeeping = self._housekeeping.run(self._healthy.is_set, self._handlers.all_sources_ready)
            group.create_task(housekeeping, name="sync loop: housekeeping")

    def tick(self) -> Iterator[bool]:
        """Sync the pods that are due or whose active deadline has passed, one pod per step."""
        for uid in dict.fromkeys([*self._inbox.queue.get_work(), *self._deadlines.past()]):
            self._handlers.retry(uid)
            yield False

    async def _handle_messages(self) -> None:
        while True:
            await self._inbox.wait()
            while self._inbox:
                await self._healthy.wait()
                # Take it only now: while the runtime is unhealthy, messages stay in the inbox and keep their order.
                message = self._inbox.take()
                await self._run_steps(self._handle(message))
                if isinstance(message, PodUpdate):
                    # After all steps, because `podkeeper stop` waits until the removal was handled and not only taken.
                    self._inbox.pending_updates -= 1
                    for subscriber in self._subscribers:
                        subscriber()

    def _handle(self, message: LoopMessage) -> Iterator[bool]:
        match message:
            case PodUpdate():
                yield from self._handlers.config(message)
                deadline_seconds = self._deadlines.seconds_to_next()
                if deadline_seconds is not None:
                    # A new pod may have an earlier deadline than the time until which the loop sleeps.
                    self._inbox.wake_by(self._clock.monotonic() + deadline_seconds)
            case LifecycleEvent():
                self._handlers.lifecycle(message)
            case ProbeUpdate():
                self._handlers.probe(message)
            case StaticPodEnded(full_name=name):
                self._handlers.wake_successor(name)
        yield False

    async def _run_due_syncs(self) -> None:
        while True:
            await self._healthy.wait()
            await self._run_steps(self.tick())
            while not await self._inbox.sleep_until(self._next_due()):
                pass

    async def _run_steps(self, steps: Iterator[bool]) -> None:
        """Run steps. Yield after each long one, and after every few. No exception stops the loop."""
        try:
            for costly in steps:
                self._steps += 1
                # A rejection or preemption iterates over all admitted pods, so it counts as costly.
                if costly or self._steps % PODS_PER_YIELD == 0:
                    await asyncio.sleep(0)
                    await self._healthy.wait()
        except Exception:
            log.exception("unexpected error while handling a message, continuing with the next one")

    def _next_due(self) -> float | None:
        """Return when the next sync or deadline is due. None: never."""
        now, due = self._clock.monotonic(), self._inbox.queue.next_due()
        deadline_seconds = self._deadlines.seconds_to_next()
        times = [] if due is None else [max(due, now) + DUE_MARGIN_SECONDS]
        if deadline_seconds is not None:
            times.append(now + deadline_seconds)
        return min(times, default=None)

    async def _check_runtime(self) -> None:
        """Check the runtime periodically. While it is unhealthy, check often, with backoff."""
        retries = RetryCounter(UNHEALTHY_PERIOD)
        problems: LogOnce[str] = LogOnce(log)
        while True:
            await self._runtime_state.check()
            error = self._runtime_state.runtime_error
            if error is None:
                if not self._healthy.is_set():
                    log.info("the runtime is healthy: handling %d waiting messages", len(self._inbox))
                self._healthy.set()
                retries.succeeded()
                problems.solved("runtime")
                await asyncio.sleep(HEALTH_PERIOD_SECONDS)
            else:
                problems.problem("runtime", "no pod is started or stopped until the runtime is healthy: %s", error)
                self._healthy.clear()
                await asyncio.sleep(retries.failed())
