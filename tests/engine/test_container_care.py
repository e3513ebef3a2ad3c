"""The care for dead containers: a sweep every minute over those pods that have garbage."""

import asyncio
from contextlib import suppress

from podkeeper.engine.container_care import ContainerCare
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.collect import garbage_of
from podkeeper.testing.virtual_time import simulate


class Listing:
    """A runtime that only lists."""

    def __init__(self, *records: PodRecord) -> None:
        self.records = records
        self.down = False

    async def list_pods(self) -> tuple[PodRecord, ...]:
        if self.down:
            raise RuntimeUnavailable("cannot reach the runtime")
        return self.records


def dead(uid: str, count: int) -> PodRecord:
    exited = ContainerState.EXITED
    made = tuple(ContainerRecord(id=f"{uid}-{number}", name="c", state=exited) for number in range(count))
    return PodRecord(uid=uid, containers=made)


def swept(listing: Listing, seconds: float) -> tuple[list[str], list[PodEvent]]:
    """Whose garbage is collected within so many seconds, and what is told of the node."""
    collected: list[str] = []
    told: list[PodEvent] = []

    async def collect(record: PodRecord) -> None:
        collected.append(record.uid)

    async def life() -> None:
        care = ContainerCare(runtime=listing, collect=collect, tell=told.append)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await care.run()

    simulate(life())
    return collected, told


def test_only_pods_with_garbage_are_seen_to_every_minute() -> None:
    assert swept(Listing(dead("tidy", 1), dead("crashed", 3)), 150) == (["crashed"] * 2, [])


def test_the_last_attempt_counts_as_the_last_exit_even_if_the_clock_was_set_back() -> None:
    earlier, later = (
        ContainerRecord(id=name, name="c", state=ContainerState.EXITED, restart_count=count)
        for name, count in (("earlier", 1), ("later", 2))
    )
    collected: list[PodRecord] = []

    async def collect(record: PodRecord) -> None:
        collected.append(record)

    async def life() -> None:
        listing = Listing(PodRecord(uid="web", containers=(earlier, later)))  # the newest creation time comes first
        await ContainerCare(runtime=listing, collect=collect, tell=lambda event: None).sweep()

    simulate(life())
    assert [garbage_of(record).container_ids for record in collected] == [("earlier",)]


def test_a_runtime_that_does_not_tell_is_told_of() -> None:
    listing = Listing(dead("crashed", 2))
    listing.down = True
    collected, told = swept(listing, 61)
    assert (collected, [event.reason for event in told]) == ([], ["ContainerGCFailed"])
