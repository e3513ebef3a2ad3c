"""What is asked of a runtime to see a pod, and what is not asked again."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerState
from podkeeper.runtimes.cri import index
from podkeeper.runtimes.cri.index import Index, Kind, Owner
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.fake_server import FakeCri
from tests.runtimes.cri.scenes import Scene, with_fake

LONG_AGO = 10**9


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def ended(fake: FakeCri, container_id: str, at: int) -> cri.ContainerStatus:
    """A container that has exited."""
    fake.exit(container_id, 1)
    status = fake.containers[container_id]
    status.started_at, status.finished_at = min(status.started_at, at), at
    return status


def test_a_container_that_exited_long_ago_is_asked_about_once() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            ended(fake, container_id, LONG_AGO)
            first = await scene.record()
            assert await scene.record() == first
            assert first.containers[0].exit_code == 1
            assert fake.count("ContainerStatus") == 1

    run(scenario())


def test_a_container_is_asked_about_once_while_it_runs() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.create(await scene.sandbox())
            assert (await scene.container(container_id)).state is ContainerState.CREATED
            await runtime.start_container(container_id)
            first = await scene.container(container_id)
            assert first == await scene.container(container_id)
            assert (first.state, fake.count("ContainerStatus")) == (ContainerState.RUNNING, 2)
            fake.exit(container_id, 3)  # and nobody tells
            assert (await scene.container(container_id)).exit_code == 3

    run(scenario())


def test_a_container_that_has_just_exited_is_asked_about_again() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            fake.exit(container_id, 137)
            assert (await scene.container(container_id)).reason == "Error"
            fake.containers[container_id].reason = "OOMKilled"
            assert (await scene.container(container_id)).reason == "OOMKilled"

    run(scenario())


def test_the_network_of_a_sandbox_is_asked_for_once_while_it_is_ready() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            assert (await scene.record()).ips == (await scene.record()).ips == ("192.0.2.9",)
            assert fake.count("PodSandboxStatus") == 1
            await runtime.stop_sandbox(sandbox_id)
            assert (await scene.record()).ips == ()

    run(scenario())


def test_only_the_newest_sandbox_is_asked_about() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            old = await scene.sandbox(0)
            await runtime.stop_sandbox(old)
            new = await scene.sandbox(1)
            assert [box.id for box in (await scene.record()).sandboxes] == [new, old]
            assert fake.count("PodSandboxStatus") == 1

    run(scenario())


def test_a_list_costs_two_calls_and_forgets_what_is_gone() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            status = ended(fake, container_id, LONG_AGO)
            await scene.record()
            del fake.containers[container_id]
            asked = len(fake.calls)
            await runtime.list_pods()
            assert len(fake.calls) == asked + 2
            status.exit_code = 9
            fake.containers[container_id] = status  # as if an id came back: what was remembered must be gone
            assert (await scene.container(container_id)).exit_code == 9

    run(scenario())


def test_the_index_is_bounded_and_keeps_what_was_made_here() -> None:
    ids = Index()
    ids.made("ours", "u", Kind.CONTAINER)
    ids.saw("ours", "u", Kind.CONTAINER)
    assert ids.get("ours") == Owner(PodUID("u"), Kind.CONTAINER, made_here=True)
    for number in range(index.KEPT + 5):
        ids.saw(str(number), "u", Kind.SANDBOX)
    assert len(ids) == index.KEPT
    assert ids.get("ours") is None
    assert ids.drop("none") is None
