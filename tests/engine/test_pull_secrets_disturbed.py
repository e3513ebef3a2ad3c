"""Pull secrets, with an event at every await and a failure of every call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.model.messages import PodEvent
from podkeeper.rules.images.keyring import pull_credentials
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_pull_secrets import GOOD, pod


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
    secrets = PullSecrets(objects=calls.watch("api", objects), record_event=lambda event, _: recorded.append(event))
    yield Reading(secrets, objects, recorded)


def test_a_pull_continues_without_an_unavailable_secret() -> None:
    def either(harness: Reading) -> object:
        assert (harness.users == ["first"]) != bool(harness.recorded), "an event reports that a secret is missing"
        return None

    async def read_again(harness: Reading) -> None:
        harness.objects.replace("file", (GOOD,))
        await harness.read()
        assert harness.users == ["first"]

    operation = OperationTest(setup=reading, run=Reading.read, state=either, afterwards=read_again)
    interleave(operation, {"the secret is removed": Reading.remove_secret})
    fail_each_call(operation, unexpected=False)  # an unexpected error is raised to the sync
