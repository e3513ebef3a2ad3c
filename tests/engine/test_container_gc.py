"""Container garbage collection: once a minute, for the pods that have garbage."""

import asyncio
from contextlib import suppress

from podkeeper.engine.container_gc import ContainerGC
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.container_gc import garbage_of
from podkeeper.testing.virtual_time import simulate


class Listing:
    """A runtime that only lists pods."""

    def __init__(self, *records: PodRecord) -> None:
        self.records = records
        self.down = False

    async def list_pods(self) -> tuple[PodRecord, ...]:
        if self.down:
            raise RuntimeUnavailable("cannot reach the runtime")
        return self.records


def dead(uid: str, count: int) -> PodRecord:
    exited = RecordState.EXITED
    made = tuple(ContainerRecord(id=f"{uid}-{number}", name="c", state=exited) for number in range(count))
    return PodRecord(uid=uid, containers=made)


def collected_within(listing: Listing, seconds: float) -> tuple[list[str], list[PodEvent]]:
    """Return the pods whose garbage is collected within these seconds, and the events about the node."""
    collected: list[str] = []
    recorded: list[PodEvent] = []

    async def collect(record: PodRecord) -> None:
        collected.append(record.uid)

    async def main() -> None:
        gc = ContainerGC(runtime=listing, collect=collect, record_event=recorded.append)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await gc.run()

    simulate(main())
    return collected, recorded


def test_garbage_of_pods_is_collected_every_minute() -> None:
    assert collected_within(Listing(dead("within-limit", 1), dead("crashed", 3)), 150) == (["crashed"] * 2, [])


def test_the_last_attempt_counts_as_the_last_exit_even_if_the_clock_was_set_back() -> None:
    earlier, later = (
        ContainerRecord(id=name, name="c", state=RecordState.EXITED, restart_count=count)
        for name, count in (("earlier", 1), ("later", 2))
    )
    collected: list[PodRecord] = []

    async def collect(record: PodRecord) -> None:
        collected.append(record)

    async def main() -> None:
        listing = Listing(PodRecord(uid="web", containers=(earlier, later)))  # the newest creation time comes first
        await ContainerGC(runtime=listing, collect=collect, record_event=lambda event: None).garbage_collect()

    simulate(main())
    assert [garbage_of(record).container_ids for record in collected] == [("earlier",)]


def test_a_runtime_error_is_recorded() -> None:
    listing = Listing(dead("crashed", 2))
    listing.down = True
    collected, recorded = collected_within(listing, 61)
    assert (collected, [event.reason for event in recorded]) == ([], ["ContainerGCFailed"])
