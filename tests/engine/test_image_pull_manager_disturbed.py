"""Records of image pulls, with an event at every await and a failure of every call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.rules.images.pull_access import Verification, VerificationPolicy
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.scripted_journal import ScriptedJournal

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
    "another pull that may not have ended": lambda harness: harness.pull(certain=False),
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
