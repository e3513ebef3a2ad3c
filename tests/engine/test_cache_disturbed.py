"""Readers of the pod cache, with every kind of inspection result at every await."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf

from podkeeper.engine.cache import PodCache
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls

WEB, DB = PodUID("web"), PodUID("db")
SINCE = 5.0  # the reader's own last action
OLD, NEW, LATEST = 4.0, 6.0, 7.0


def seen(at: float, uid: PodUID = WEB) -> PodRecord:
    return PodRecord(uid=uid, name=f"seen at {at:g}")


@dataclass
class Harness:
    cache: PodCache
    refreshes: int
    others: list[asyncio.Task[None]] = field(default_factory=list)
    answered_at: float = inf  # when the first answer to the readers came

    async def read(self, uid: PodUID = WEB) -> None:
        """What a sync does: it reads a record that is newer than its last action, and no older one."""
        time = asyncio.get_running_loop().time
        began = time()
        record = await self.cache.get_newer_than(uid, SINCE)
        if uid == WEB:
            assert time() <= max(began, self.answered_at), "the reader waited longer than for an answer"
        agreed = "seen at 3" if self.answered_at < inf else ""  # a newer listing may have confirmed the old record
        assert record.name in ("", agreed, f"seen at {NEW:g}", f"seen at {LATEST:g}"), record.name

    def read_beside(self) -> None:
        self.others.append(asyncio.ensure_future(self.read()))

    def cancel_the_others(self) -> None:
        for reader in self.others:
            reader.cancel()

    def answer(self, how: Callable[[PodCache], object]) -> None:
        self.answered_at = min(self.answered_at, asyncio.get_running_loop().time())
        how(self.cache)

    def end_older_inspection(self) -> None:
        self.cache.set(WEB, seen(OLD), OLD)

    def known(self) -> str:
        return self.cache.get(WEB).name

    async def reads_go_on(self) -> None:
        """Other readers have ended, and a later one needs no other inspection."""
        if self.others:
            await asyncio.wait(self.others)
        refreshes = self.refreshes
        await self.read()
        assert self.refreshes == refreshes
        # A waiter that was left behind would be woken here, although its reader is gone.
        self.cache.set(WEB, seen(LATEST), LATEST + 1)
        self.cache.all_seen(LATEST + 2)


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    loop = asyncio.get_running_loop()

    def refresh(uid: PodUID, since: float) -> None:
        """An inspection ends some callbacks later, as PLEG's do."""
        made.refreshes += 1
        if uid == WEB:
            loop.call_later(1, made.answer, lambda cache: cache.set(uid, seen(NEW), NEW))
        else:
            loop.call_later(1, made.cache.set, uid, seen(NEW, uid), NEW)

    made = Harness(PodCache(), 0)
    made.cache.connect(refresh)
    made.cache.set(WEB, seen(3), 3)
    made.read_beside()
    for number in range(4):  # moments while all readers wait
        loop.call_later(0.2 * number + 0.1, lambda: None)
    yield made


EVENTS: dict[str, Event[Harness]] = {
    "an older inspection ends": Harness.end_older_inspection,
    "a newer inspection ends": lambda harness: harness.answer(lambda cache: cache.set(WEB, seen(NEW), NEW)),
    "the latest inspection ends": lambda harness: harness.answer(lambda cache: cache.set(WEB, seen(LATEST), LATEST)),
    "an older inspection fails": lambda harness: harness.cache.set_error(WEB, TryLater("cannot inspect"), OLD),
    "the pod is gone": lambda harness: harness.answer(lambda cache: cache.drop(WEB, LATEST)),
    "an older listing agrees": lambda harness: harness.cache.all_seen(OLD),
    "a newer listing agrees": lambda harness: harness.answer(lambda cache: cache.all_seen(NEW)),
    "a listing shows the pod changed": lambda harness: harness.cache.all_seen(LATEST, but=[WEB]),
    "another pod is inspected": lambda harness: harness.read(DB),
    "another reader begins": Harness.read_beside,
    "the other readers are cancelled": Harness.cancel_the_others,
}


def test_a_reader_gets_a_newer_record_with_every_event() -> None:
    reading = OperationTest(
        setup=set_up,
        run=Harness.read,
        state=Harness.known,
        afterwards=Harness.reads_go_on,
        settle_seconds=2,
    )
    interleave(reading, EVENTS)


def test_a_newer_failure_reaches_the_readers() -> None:
    """They fail, and the next read has another inspection made."""

    async def read_until_it_works(harness: Harness) -> None:
        await harness.read()

    def fail(harness: Harness) -> None:
        harness.cache.set_error(WEB, TryLater("cannot inspect"), SINCE + 0.5)

    @asynccontextmanager
    async def alone(calls: PortCalls) -> AsyncIterator[Harness]:
        async with set_up(calls) as both:
            await asyncio.sleep(0)
            both.cancel_the_others()
            await asyncio.wait(both.others)
            yield both

    reading = OperationTest(
        setup=alone, run=read_until_it_works, state=Harness.known, afterwards=Harness.reads_go_on, settle_seconds=2
    )
    interleave(reading, {"a newer inspection fails": fail})
