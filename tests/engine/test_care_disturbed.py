"""Dead containers, links to logs, pull secrets and the book of pulls: an event at every await, a failure at every call.

These modules keep no state between two calls, except for the book of pulls.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.container_care import ContainerCare
from podkeeper.engine.image_access import PullBook
from podkeeper.engine.link_care import LinkCare
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.image_access import Policy, Verification
from podkeeper.rules.keyring import keys_for
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.test_container_care import Listing, dead
from tests.engine.test_link_care import Links, Runtime
from tests.engine.test_notebook import FakeJournal
from tests.engine.test_pull_secrets import GOOD, pod

# Dead containers.


class Remover:
    """Removes the garbage of pods."""

    def __init__(self) -> None:
        self.collected: set[str] = set()

    async def collect(self, record: PodRecord) -> None:
        self.collected.add(record.uid)


@asynccontextmanager
async def sweeping(calls: PortCalls) -> AsyncIterator[Remover]:
    listing, remover = Listing(dead("tidy", 1), dead("one", 2), dead("two", 3)), Remover()
    care = ContainerCare(
        runtime=calls.watch("runtime", listing),
        collect=calls.watch("remover", remover, {"collect": ()}).collect,
        tell=lambda event: None,
        period_seconds=10,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(care.run())
        yield remover
        running.cancel()


def test_dead_containers_are_swept_after_every_failure() -> None:
    sweep = Operation(stage=sweeping, run=lambda _: asyncio.sleep(25), state=lambda it: sorted(it.collected))
    fail_each_call(sweep)


# Links.


@asynccontextmanager
async def linking(calls: PortCalls) -> AsyncIterator[tuple[Links, Runtime]]:
    links, runtime = Links(old=False), Runtime("a")
    watched = calls.watch("links", links, dict.fromkeys(("survey", "make", "remove"), (TryLater,)))
    care = LinkCare(runtime=calls.watch("runtime", runtime), links=watched, log_root="/logs", period_seconds=10)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(care.run())
        yield links, runtime
        running.cancel()


def test_links_are_right_after_every_event_and_failure() -> None:
    def start(it: tuple[Links, Runtime]) -> None:
        """Another container starts, and its link is made at once."""
        it[1].ids = ("a", "b")
        it[0].there["p_ns_c-b.log"] = True

    operation = Operation(
        stage=linking, run=lambda _: asyncio.sleep(1), state=lambda it: it[0].there, settle_seconds=25
    )
    events: dict[str, Event[tuple[Links, Runtime]]] = {
        "a container starts": start,
        "the links are removed": lambda it: it[0].there.clear(),
    }
    interleave(operation, events, cancel=False)
    fail_each_call(operation)


# Pull secrets.


@dataclass
class Reading:
    secrets: PullSecrets
    objects: LocalObjects
    told: list[PodEvent]
    users: list[str] = field(default_factory=list)

    async def read(self) -> None:
        self.users = [each.username for each in keys_for("reg.test/app", await self.secrets.pull_secrets(pod("a")))]

    def remove_secret(self) -> None:
        self.objects.replace("file", ())


@asynccontextmanager
async def reading(calls: PortCalls) -> AsyncIterator[Reading]:
    objects, told = LocalObjects(), list[PodEvent]()
    objects.replace("file", (GOOD,))
    secrets = PullSecrets(objects=calls.watch("api", objects), record=lambda event, _: told.append(event))
    yield Reading(secrets, objects, told)


def test_a_pull_goes_on_without_a_secret_that_cannot_be_read() -> None:
    def either(it: Reading) -> object:
        assert (it.users == ["first"]) != bool(it.told), "an event says that a secret is missing"
        return None

    async def read_again(it: Reading) -> None:
        it.objects.replace("file", (GOOD,))
        await it.read()
        assert it.users == ["first"]

    operation = Operation(stage=reading, run=Reading.read, state=either, afterwards=read_again)
    interleave(operation, {"the secret is removed": Reading.remove_secret})
    fail_each_call(operation, unexpected=False)  # of a bug the pass is told


# The book of pulls.

IMAGE = "reg.test/app:v1"


@dataclass
class Pulling:
    book: PullBook
    journal: FakeJournal
    wrong: list[str] = field(default_factory=list)

    async def pull(self, *, surely: bool = True) -> None:
        """Pull an image as the image manager does."""
        await self.book.begin(IMAGE)
        for _ in range(3):
            if f"begun/{IMAGE}" not in self.journal.notes.keys() & self.journal.durable.keys():
                self.wrong.append("an image is pulled without a durable note")
            await asyncio.sleep(0.3)
        if surely:
            self.book.pulled(IMAGE, "sha256:1", None)
        self.book.ended(IMAGE, surely=surely)

    def what_is_noted(self) -> object:
        return sorted(self.journal.notes), self.book.must_pull(IMAGE, "sha256:1", ())

    def is_sound(self) -> None:
        assert not self.wrong

    async def a_pull_that_succeeds_leaves_no_note(self) -> None:
        await self.pull()
        assert self.what_is_noted() == (["pulled/sha256:1"], False)


@asynccontextmanager
async def pulling(calls: PortCalls) -> AsyncIterator[Pulling]:
    journal = FakeJournal()
    watched = calls.watch("journal", journal)
    book = PullBook(
        begun=Notebook(watched, "begun/"),
        pulled=Notebook(watched, "pulled/"),
        clock=VirtualClock(),
        verification=Verification(Policy.ALWAYS),
    )
    yield Pulling(book, journal)


PULLS: dict[str, Event[Pulling]] = {
    "another pull": Pulling.pull,
    "another pull that may not have ended": lambda it: it.pull(surely=False),
}


def test_a_pull_is_noted_from_its_begin_to_its_end() -> None:
    operation = Operation(
        stage=pulling,
        run=Pulling.pull,
        state=Pulling.what_is_noted,
        check=Pulling.is_sound,
        afterwards=Pulling.a_pull_that_succeeds_leaves_no_note,
    )
    # The image manager never cancels a pull: it outlives the pods that wait for it.
    interleave(operation, PULLS, cancel=False)
    # A disk that fails does not keep an image from being pulled.
    fail_each_call(Operation(stage=pulling, run=Pulling.pull, state=operation.state, afterwards=operation.afterwards))
