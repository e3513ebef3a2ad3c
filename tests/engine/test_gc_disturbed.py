"""Container GC, log symlinks, pull secrets, pull records: an event at every await, a failure at every call.

These modules keep no state between two calls, except for the image pull manager.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.container_gc import ContainerGC
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.log_symlinks import LogSymlinks
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.images.keyring import pull_credentials
from podkeeper.rules.images.pull_access import Verification, VerificationPolicy
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.scripted_journal import ScriptedJournal
from tests.engine.test_container_gc import Listing, dead
from tests.engine.test_log_symlinks import Links, Runtime
from tests.engine.test_pull_secrets import GOOD, pod

# Dead containers.


class Remover:
    """Removes the garbage of pods."""

    def __init__(self) -> None:
        self.collected: set[str] = set()

    async def collect(self, record: PodRecord) -> None:
        self.collected.add(record.uid)


@asynccontextmanager
async def collecting(calls: PortCalls) -> AsyncIterator[Remover]:
    listing, remover = Listing(dead("within-limit", 1), dead("one", 2), dead("two", 3)), Remover()
    gc = ContainerGC(
        runtime=calls.watch("runtime", listing),
        collect=calls.watch("remover", remover, {"collect": ()}).collect,
        record=lambda event: None,
        period_seconds=10,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gc.run())
        yield remover
        running.cancel()


def test_garbage_is_collected_after_every_failure() -> None:
    collect = OperationTest(setup=collecting, run=lambda _: asyncio.sleep(25), state=lambda it: sorted(it.collected))
    fail_each_call(collect)


# Links.


@asynccontextmanager
async def linking(calls: PortCalls) -> AsyncIterator[tuple[Links, Runtime]]:
    links, runtime = Links(old=False), Runtime("a")
    watched = calls.watch("links", links, dict.fromkeys(("list_links", "make", "remove"), (TryLater,)))
    gc = LogSymlinks(runtime=calls.watch("runtime", runtime), links=watched, log_root="/logs", period_seconds=10)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gc.run())
        yield links, runtime
        running.cancel()


def test_links_are_correct_after_every_event_and_failure() -> None:
    def start(it: tuple[Links, Runtime]) -> None:
        """Start another container, whose link is created at once."""
        it[1].ids = ("a", "b")
        it[0].existing["p_ns_c-b.log"] = True

    operation = OperationTest(
        setup=linking, run=lambda _: asyncio.sleep(1), state=lambda it: it[0].existing, settle_seconds=25
    )
    events: dict[str, Event[tuple[Links, Runtime]]] = {
        "a container starts": start,
        "the links are removed": lambda it: it[0].existing.clear(),
    }
    interleave(operation, events, cancel=False)
    fail_each_call(operation)


# Pull secrets.


@dataclass
class Reading:
    secrets: PullSecrets
    objects: LocalObjects
    recorded: list[PodEvent]
    users: list[str] = field(default_factory=list)

    async def read(self) -> None:
        self.users = [
            each.username
            for each in pull_credentials("reg.test/app", await self.secrets.pull_secrets(pod(pull_secrets=("a",))))
        ]

    def remove_secret(self) -> None:
        self.objects.replace("file", ())


@asynccontextmanager
async def reading(calls: PortCalls) -> AsyncIterator[Reading]:
    objects, recorded = LocalObjects(), list[PodEvent]()
    objects.replace("file", (GOOD,))
    secrets = PullSecrets(objects=calls.watch("api", objects), record=lambda event, _: recorded.append(event))
    yield Reading(secrets, objects, recorded)


def test_a_pull_continues_without_an_unavailable_secret() -> None:
    def either(it: Reading) -> object:
        assert (it.users == ["first"]) != bool(it.recorded), "an event reports that a secret is missing"
        return None

    async def read_again(it: Reading) -> None:
        it.objects.replace("file", (GOOD,))
        await it.read()
        assert it.users == ["first"]

    operation = OperationTest(setup=reading, run=Reading.read, state=either, afterwards=read_again)
    interleave(operation, {"the secret is removed": Reading.remove_secret})
    fail_each_call(operation, unexpected=False)  # an unexpected error is raised to the sync


# Image pull records.

IMAGE = "reg.test/app:v1"


@dataclass
class Pulling:
    manager: ImagePullManager
    journal: ScriptedJournal
    wrong: list[str] = field(default_factory=list)

    async def pull(self, *, certain: bool = True) -> None:
        """Pull an image as the image manager does."""
        await self.manager.record_pull_intent(IMAGE)
        for _ in range(3):
            if f"begun/{IMAGE}" not in self.journal.values.keys() & self.journal.durable.keys():
                self.wrong.append("an image is pulled without a durable intent")
            await asyncio.sleep(0.3)
        if certain:
            self.manager.record_image_pulled(IMAGE, "sha256:1", None)
        self.manager.record_pull_ended(IMAGE, certain=certain)

    def records(self) -> object:
        return sorted(self.journal.values), self.manager.must_attempt_image_pull(IMAGE, "sha256:1", ())

    def is_sound(self) -> None:
        assert not self.wrong

    async def a_successful_pull_leaves_no_intent(self) -> None:
        await self.pull()
        assert self.records() == (["pulled/sha256:1"], False)


@asynccontextmanager
async def pulling(calls: PortCalls) -> AsyncIterator[Pulling]:
    journal = ScriptedJournal()
    watched = calls.watch("journal", journal)
    manager = ImagePullManager(
        intents=Checkpoints(watched, "begun/"),
        pulled=Checkpoints(watched, "pulled/"),
        clock=VirtualClock(),
        verification=Verification(VerificationPolicy.ALWAYS),
    )
    yield Pulling(manager, journal)


PULLS: dict[str, Event[Pulling]] = {
    "another pull": Pulling.pull,
    "another pull that may not have ended": lambda it: it.pull(certain=False),
}


def test_an_intent_is_recorded_from_the_begin_of_a_pull_to_its_end() -> None:
    operation = OperationTest(
        setup=pulling,
        run=Pulling.pull,
        state=Pulling.records,
        check=Pulling.is_sound,
        afterwards=Pulling.a_successful_pull_leaves_no_intent,
    )
    # No cancellations: a pull outlives the pods that wait for it.
    interleave(operation, PULLS, cancel=False)
    # A disk error does not prevent a pull.
    fail_each_call(
        OperationTest(setup=pulling, run=Pulling.pull, state=operation.state, afterwards=operation.afterwards)
    )
