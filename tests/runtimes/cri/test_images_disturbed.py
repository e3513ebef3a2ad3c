"""CriImages through CRI, and containers in state UNKNOWN, with an event at every await and a failure at every call."""

import base64
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from podkeeper.model.errors import AgentError, CallTimedOut, ImagePullFailed, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.images import CriImages
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.schema import cri
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import InjectedFault, PortCall, PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.runtimes.cri.cri_pod import CriPod, facts
from tests.runtimes.cri.fake_server import DirectTransport, FakeCri

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

ERRORS = {"unary": (RuntimeUnavailable, CallTimedOut, RuntimeRefused)}
IMAGE = "registry.example/app:1"


def secret(user: str) -> str:
    auth = base64.b64encode(f"{user}:hush".encode()).decode()
    return json.dumps({"auths": {"registry.example": {"auth": auth}}})


# CriImages.


@dataclass
class Registry:
    fake: FakeCri
    images: CriImages
    pulled: list[str] = field(default_factory=list)

    async def pull(self) -> None:
        record = await self.images.pull_image(IMAGE, [secret("first"), secret("second")])
        self.pulled.append(record.id)

    def users(self) -> list[str]:
        return [request.auth.username for call, request in self.fake.calls if call == "PullImage"]


@asynccontextmanager
async def registry(calls: PortCalls) -> AsyncIterator[Registry]:
    fake = FakeCri()
    yield Registry(fake, CriImages(CriCalls(calls.watch("transport", DirectTransport(fake), ERRORS))))


async def it_can_be_removed_and_pulled_again(harness: Registry) -> None:
    await harness.images.remove_image(IMAGE)
    assert await harness.images.list_images() == ()
    await harness.pull()
    assert await harness.images.image(IMAGE) is not None


PULL = OperationTest(
    setup=registry,
    run=Registry.pull,
    state=lambda harness: (set(harness.pulled), sorted(harness.fake.images)),
    afterwards=it_can_be_removed_and_pulled_again,
)
IMAGE_EVENTS: dict[str, Event[Registry]] = {
    "the image is pulled": Registry.pull,
    "the image is removed": lambda harness: harness.images.remove_image(IMAGE),
    "images are listed": lambda harness: harness.images.list_images(),
    "the image is inspected": lambda harness: harness.images.image(IMAGE),
}


def test_every_event_at_every_await_of_a_pull() -> None:
    interleave(PULL, IMAGE_EVENTS)


def test_every_call_of_a_pull_fails_once() -> None:
    fail_each_call(PULL)


@pytest.mark.parametrize(
    ("error", "users"),
    [(RuntimeRefused, ["second"]), (RuntimeUnavailable, [])],  # the next credentials help only against a refusal
)
def test_the_next_credentials_are_tried_after_a_refusal(error: type[Exception], users: list[str]) -> None:
    async def scenario() -> list[str]:
        calls = PortCalls()
        calls.arm(InjectedFault(PortCall("transport", "unary", 0), error))
        async with registry(calls) as harness:
            try:
                await harness.pull()
            except error:
                assert harness.pulled == []
            return harness.users()

    assert simulate(scenario())[0] == users


def test_a_pull_fails_if_all_credentials_are_refused() -> None:
    async def scenario() -> None:
        calls = PortCalls()
        calls.arm(InjectedFault(PortCall("transport", "unary", 0), RuntimeRefused, times=2))
        async with registry(calls) as harness:
            with pytest.raises(ImagePullFailed):
                await harness.pull()

    simulate(scenario())


# Containers in state UNKNOWN.


@dataclass
class Lost:
    fake: FakeCri
    runtime: CriRuntime
    cri_pod: CriPod
    container: str = ""
    seen: PodRecord | None = None

    async def inspect(self) -> None:
        self.seen = await self.runtime.pod_record(self.cri_pod.uid)

    async def remove(self) -> None:
        await self.runtime.remove_container(self.container)

    async def stop(self) -> None:
        await self.runtime.stop_container(self.container, 1)

    def there(self) -> list[tuple[int, int]]:
        return [(int(each.state), int(each.exit_code)) for each in self.fake.containers.values()]

    def check(self) -> None:
        # In any order of calls, the exit code is 7 and not that of a stop.
        assert self.there() in ([], [(int(cri.CONTAINER_EXITED), 7)])
        assert self.seen is not None
        for each in self.seen.containers:
            assert (each.state, each.exit_code) == (RecordState.EXITED, 7)


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


PROCESS = dead_process()


@asynccontextmanager
async def lost(calls: PortCalls) -> AsyncIterator[Lost]:
    fake = FakeCri()
    with tempfile.TemporaryDirectory(prefix="podkeeper-pods-", dir=MEMORY) as directory:
        transport = calls.watch("transport", DirectTransport(fake), ERRORS)
        async with CriRuntime(transport, facts(directory), clock=VirtualClock()) as runtime:
            made = Lost(fake, runtime, CriPod(runtime))
            made.container = await made.cri_pod.start()
            fake.containers[made.container].state = cri.CONTAINER_UNKNOWN
            fake.lost_exit_codes[made.container] = 7
            fake.processes[made.container] = PROCESS
            calls.log.clear()
            yield made


async def the_next_inspection_shows_the_same(harness: Lost) -> None:
    await harness.inspect()
    assert harness.seen is not None
    assert len(harness.seen.containers) == len(harness.fake.containers)
    harness.check()


INSPECT = OperationTest(
    setup=lost,
    run=Lost.inspect,
    state=Lost.there,
    check=Lost.check,
    afterwards=the_next_inspection_shows_the_same,
)
LOST_EVENTS: dict[str, Event[Lost]] = {
    "the pod is inspected": Lost.inspect,
    "all pods are listed": lambda harness: harness.runtime.list_pods(),
    "the container is stopped": Lost.stop,
    "the container is removed": Lost.remove,
}


def test_every_event_at_every_await_of_an_inspection() -> None:
    async def inspect(harness: Lost) -> None:
        try:
            await harness.inspect()
        except AgentError as error:
            raise AssertionError("no call failed, and yet the inspection did") from error

    interleave(replace(INSPECT, run=inspect), LOST_EVENTS)


def test_every_call_of_an_inspection_fails_once() -> None:
    fail_each_call(INSPECT)
