"""Calls of a pod inspection, and which results are cached."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import RecordState
from podkeeper.runtimes.cri import owners
from podkeeper.runtimes.cri.owners import Kind, Owner, OwnerIndex
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.cri_pod import CriPod, runtime_on_fake
from tests.runtimes.cri.fake_server import FakeCri

LONG_AGO = 10**9


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def ended(fake: FakeCri, container_id: str, at: int) -> cri.ContainerStatus:
    """A container that has exited."""
    fake.exit(container_id, 1)
    status = fake.containers[container_id]
    status.started_at, status.finished_at = min(status.started_at, at), at
    return status


def test_the_status_of_an_old_exit_is_requested_once() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            ended(fake, container_id, LONG_AGO)
            first = await cri_pod.record()
            assert await cri_pod.record() == first
            assert first.containers[0].exit_code == 1
            assert fake.count("ContainerStatus") == 1

    run(scenario())


def test_the_status_of_a_running_container_is_requested_once() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.create(await cri_pod.sandbox())
            assert (await cri_pod.container(container_id)).state is RecordState.CREATED
            await runtime.start_container(container_id)
            first = await cri_pod.container(container_id)
            assert first == await cri_pod.container(container_id)
            assert (first.state, fake.count("ContainerStatus")) == (RecordState.RUNNING, 2)
            fake.exit(container_id, 3)  # without an event
            assert (await cri_pod.container(container_id)).exit_code == 3

    run(scenario())


def test_the_status_of_a_recent_exit_is_requested_again() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            fake.exit(container_id, 137)
            assert (await cri_pod.container(container_id)).reason == "Error"
            fake.containers[container_id].reason = "OOMKilled"
            assert (await cri_pod.container(container_id)).reason == "OOMKilled"

    run(scenario())


def test_the_network_of_a_ready_sandbox_is_requested_once() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            assert (await cri_pod.record()).ips == (await cri_pod.record()).ips == ("192.0.2.9",)
            assert fake.count("PodSandboxStatus") == 1
            await runtime.stop_sandbox(sandbox_id)
            assert (await cri_pod.record()).ips == ()

    run(scenario())


def test_only_the_status_of_the_newest_sandbox_is_requested() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            old = await cri_pod.sandbox(0)
            await runtime.stop_sandbox(old)
            new = await cri_pod.sandbox(1)
            assert [box.id for box in (await cri_pod.record()).sandboxes] == [new, old]
            assert fake.count("PodSandboxStatus") == 1

    run(scenario())


def test_a_list_takes_two_calls_and_drops_removed_objects() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            status = ended(fake, container_id, LONG_AGO)
            await cri_pod.record()
            del fake.containers[container_id]
            calls = len(fake.calls)
            await runtime.list_pods()
            assert len(fake.calls) == calls + 2
            status.exit_code = 9
            fake.containers[container_id] = status  # as if an id were reused: the cache must not have it
            assert (await cri_pod.container(container_id)).exit_code == 9

    run(scenario())


def test_the_index_is_bounded_and_keeps_objects_created_here() -> None:
    ids = OwnerIndex()
    ids.made("ours", "u", Kind.CONTAINER)
    ids.saw("ours", "u", Kind.CONTAINER)
    assert ids.get("ours") == Owner(PodUID("u"), Kind.CONTAINER, made_here=True)
    for number in range(owners.KEPT + 5):
        ids.saw(str(number), "u", Kind.SANDBOX)
    assert len(ids) == owners.KEPT
    assert ids.get("ours") is None
    assert ids.drop("none") is None
