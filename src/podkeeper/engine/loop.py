"""The sync loop: takes the news in, one piece after the other, and gives every pod its turn in time.

    config, lifecycle events, probe results --> inbox --> handlers --> workers
    work that is due, deadlines that have passed ------------^

In: `tell_config`, `tell_lifecycle`, `tell_probe`, and from the workers `left` and `enqueue`. They never block, and may
be called from anywhere on the event loop. Out: calls of the handlers, in the order of the news.

Between two pods the loop gives way: ten thousand pods in one update hold up nobody. Nothing polls: turns come exactly
when work is due. While the runtime as a whole is not well (asked again and again, ever less often), news piles up and
nothing new is started; nothing is lost. Housekeeping goes on beside all this, in full once all sources are ready. The
Go ancestors are `syncLoop` and `syncLoopIteration` in pkg/kubelet/kubelet.go.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.queue import WorkQueue
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import LifecycleEvent, PodUID, PodUpdate, ProbeUpdate
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Health

log = logging.getLogger(__name__)

BREATH = 32  # pods handled between two moments in which everybody else may run
GRAIN_SECONDS = 0.001  # work is due strictly after its time
FAR_SECONDS = 30.0  # turns that are so far off need not be so exact:
TOGETHER_SECONDS = 0.5  # they are taken in company, for waking up for each costs more than the turn itself
HEALTH_PERIOD_SECONDS = 5.0
HEALTH_PATIENCE_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Left:
    """A static pod of this full name is in nobody's way any more."""

    full_name: str


News = PodUpdate | LifecycleEvent | ProbeUpdate | _Left


class SyncLoop:
    """The heart of the agent: hears everything, and sees to it that it is handled."""

    def __init__(
        self,
        *,
        handlers: SyncHandlers,
        queue: WorkQueue,
        deadlines: ActiveDeadlines,
        housekeeping: Housekeeping,
        runtime: Health,
        clock: Clock,
    ) -> None:
        self._handlers = handlers
        self._queue = queue
        self._deadlines = deadlines
        self._housekeeping = housekeeping
        self._runtime = runtime
        self._clock = clock
        self._inbox: deque[News] = deque()
        self._news = asyncio.Event()
        self._sooner = asyncio.Event()  # work is due before the time the loop sleeps to
        self._sleeps_until: float | None = None
        self._steps = 0  # taken so far
        self._well = asyncio.Event()
        self._trouble = "the runtime has not answered yet"

    # What the loop is told.

    def tell_config(self, update: PodUpdate) -> None:
        """The storage has news."""
        self._tell(update)

    def tell_lifecycle(self, event: LifecycleEvent) -> None:
        """Something happened in a pod."""
        self._tell(event)

    def tell_probe(self, update: ProbeUpdate) -> None:
        """A probe's result changed."""
        self._tell(update)

    def left(self, full_name: str) -> None:
        """A static pod has finished or is forgotten. Its successor goes before all other news."""
        self._inbox.appendleft(_Left(full_name))
        self._news.set()

    def enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        """Look at a pod again after a while: the workers' way back."""
        now = self._clock.monotonic()
        if delay_seconds >= FAR_SECONDS:
            delay_seconds += -(now + delay_seconds) % TOGETHER_SECONDS
        self._queue.enqueue(uid, delay_seconds)
        self._wake_up_by(now + delay_seconds)

    def tidy_soon(self) -> None:
        """Somebody waits until nothing is left of a pod."""
        self._housekeeping.hurry()

    def is_tidying(self, uid: PodUID) -> bool:
        """Whether something of a pod is just being removed."""
        return self._housekeeping.is_removing(uid)

    def _tell(self, news: News) -> None:
        self._inbox.append(news)
        self._news.set()

    # What the loop does.

    def health(self) -> str | None:
        """None while the loop takes news in; else why it does not."""
        return None if self._well.is_set() else self._trouble

    async def run(self) -> None:
        """Handle what comes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_the_runtime(), name="sync loop: runtime")
            group.create_task(self._take_news(), name="sync loop: news")
            group.create_task(self._take_turns(), name="sync loop: turns")
            tidying = self._housekeeping.run(self._well.is_set, self._handlers.all_sources_ready)
            group.create_task(tidying, name="sync loop: housekeeping")

    def tick(self) -> Iterator[bool]:
        """Give the pods whose work is due, or whose deadline has passed, their turn, one pod per step."""
        for uid in dict.fromkeys([*self._queue.get_work(), *self._deadlines.past()]):
            self._handlers.retry(uid)
            yield False

    async def _take_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._inbox:
                await self._well.wait()
                await self._gently(self._handle(self._inbox.popleft()))

    def _handle(self, news: News) -> Iterator[bool]:
        match news:
            case PodUpdate():
                yield from self._handlers.config(news)
                deadline_seconds = self._deadlines.seconds_to_next()
                if deadline_seconds is not None:
                    self._wake_up_by(self._clock.monotonic() + deadline_seconds)
            case LifecycleEvent():
                self._handlers.lifecycle(news)
            case ProbeUpdate():
                self._handlers.probe(news)
            case _Left(full_name=name):
                self._handlers.wake_successor(name)
        yield False

    async def _take_turns(self) -> None:
        while True:
            await self._well.wait()
            await self._gently(self.tick())
            await self._sleep_until_due()

    async def _gently(self, steps: Iterator[bool]) -> None:
        """Take steps, with a breath after each long one and after every so many. No exception stops the loop."""
        try:
            for costly in steps:
                self._steps += 1
                if costly or self._steps % BREATH == 0:
                    await asyncio.sleep(0)
                    await self._well.wait()
        except Exception:
            log.exception("cannot handle a piece of news to its end, going on with the next")

    async def _sleep_until_due(self) -> None:
        while True:
            self._sooner.clear()
            self._sleeps_until = self._next_turn()
            try:
                async with asyncio.timeout_at(self._sleeps_until):
                    await self._sooner.wait()
            except TimeoutError:
                return

    def _next_turn(self) -> float | None:
        """When there is something to do, if nothing happens before; None: never."""
        now, due = self._clock.monotonic(), self._queue.next_due()
        deadline_seconds = self._deadlines.seconds_to_next()
        turns = [] if due is None else [max(due, now) + GRAIN_SECONDS]
        if deadline_seconds is not None:
            turns.append(now + deadline_seconds)
        return min(turns, default=None)

    def _wake_up_by(self, when: float) -> None:
        if self._sleeps_until is None or when < self._sleeps_until:
            self._sooner.set()

    async def _watch_the_runtime(self) -> None:
        """Keep asking how the runtime is: often while it is not well, but ever less so."""
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            trouble = await self._ask_the_runtime()
            if trouble is None:
                if not self._well.is_set():
                    log.info("the runtime is well: going on with %d pieces of news", len(self._inbox))
                self._well.set()
                backoff_seconds = FIRST_BACKOFF_SECONDS
                await asyncio.sleep(HEALTH_PERIOD_SECONDS)
            else:
                if self._well.is_set() or trouble != self._trouble:
                    log.warning("starting nothing new: %s", trouble)
                self._trouble = trouble
                self._well.clear()
                await asyncio.sleep(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, LONGEST_BACKOFF_SECONDS)

    async def _ask_the_runtime(self) -> str | None:
        try:
            async with asyncio.timeout(HEALTH_PATIENCE_SECONDS):
                health = await self._runtime.health()
        except TimeoutError:
            return f"the runtime does not answer within {HEALTH_PATIENCE_SECONDS:g} s"
        except TryLater as error:
            return f"the runtime does not answer: {error}"
        except Exception:
            log.exception("cannot ask the runtime how it is")
            return "the runtime cannot be asked how it is"
        return None if health.runtime_ready else f"the runtime says it is not ready: {health.message}"
