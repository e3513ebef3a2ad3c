"""News from a runtime: CRI's own stream, containerd's beside it, and what becomes of listeners when it breaks."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.runtime import ContainerState
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.runtimes.cri import events
from podkeeper.runtimes.cri.schema import containerd_events, cri
from tests.runtimes.cri.fake_server import FakeCri, Late, told
from tests.runtimes.cri.scenes import Scene, with_fake, with_fake_at

STARTED, STOPPED, DELETED = RuntimeEventType.STARTED, RuntimeEventType.STOPPED, RuntimeEventType.DELETED


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def first(stream: AsyncIterator[RuntimeEvent]) -> tuple[str, str, RuntimeEventType]:
    """The next news."""
    async with asyncio.timeout(10):
        event = await anext(stream)
    return event.uid, event.container_id, event.type


def with_containerds_stream() -> FakeCri:
    """A server as containerd 1.6: no GetContainerEvents, but its own stream."""
    fake = FakeCri()
    fake.unknown_services.clear()
    return fake


def exit_of(container_id: str, process: str = "") -> Any:
    return told("/tasks/exit", containerd_events.TaskExit(container_id=container_id, id=process or container_id))


def test_news_of_cris_own_stream_is_handed_on() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.unknown_calls.clear()
        async with with_fake(fake) as runtime:
            streams = runtime.events(), runtime.events()
            for kind in (cri.CONTAINER_STARTED_EVENT, cri.CONTAINER_STOPPED_EVENT):
                box = cri.PodSandboxStatus(id="box", metadata=cri.PodSandboxMetadata(uid="uid"))
                await fake.tell(
                    cri.ContainerEventResponse(
                        container_id="c", container_event_type=kind, created_at=1_000_000_000, pod_sandbox_status=box
                    )
                )
            for stream in streams:
                assert await first(stream) == ("uid", "c", STARTED)
                assert await first(stream) == ("uid", "c", STOPPED)

    run(scenario())


def test_an_exit_is_told_once_the_status_says_so_too() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            stream = runtime.events()
            await fake.tell(exit_of(container_id))
            waiting = asyncio.ensure_future(first(stream))
            await asyncio.sleep(0.1)
            assert not waiting.done()  # who looks now sees it running, and nobody would tell again
            fake.exit(container_id, 1)
            assert await waiting == (scene.uid, container_id, STOPPED)
            assert (await scene.container(container_id)).state is ContainerState.EXITED

    run(scenario())


def test_the_end_of_a_command_is_no_news() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            stream = runtime.events()
            await fake.tell(exit_of(container_id, "a-command"))
            await fake.tell(told("/containers/delete", containerd_events.ContainerDelete(id=container_id)))
            assert await first(stream) == (scene.uid, container_id, DELETED)

    run(scenario())


def test_the_end_of_a_command_is_not_taken_for_the_end_of_its_container() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            stream = runtime.events()
            asked = fake.count("ContainerStatus")
            await fake.tell(exit_of(container_id, "a-command"))
            await asyncio.sleep(0.1)
            assert fake.count("ContainerStatus") == asked  # there is nothing to confirm
            fake.exit(container_id, 1)
            await fake.tell(exit_of(container_id))
            assert await first(stream) == (scene.uid, container_id, STOPPED)
            await asyncio.sleep(0.1)
            await fake.tell(told("/containers/delete", containerd_events.ContainerDelete(id=container_id)))
            assert await first(stream) == (scene.uid, container_id, DELETED)  # and no second end before it

    run(scenario())


async def nothing_more(stream: AsyncIterator[RuntimeEvent]) -> None:
    """Nothing is told for longer than anything of ours is kept back."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(events.OWN_LOOK_SECONDS + 0.5):
            await anext(stream)


def test_what_we_start_stop_and_remove_is_not_told_to_who_has_looked_by_himself() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.create(await scene.sandbox())
            stream = runtime.events()
            await fake.tell(exit_of("nobody", "nothing"))  # somebody hears
            await runtime.start_container(container_id)
            await scene.record()
            await nothing_more(stream)
            fake.next("StopContainer", Late(0.1))
            stopping = asyncio.ensure_future(runtime.stop_container(container_id, 1))
            await asyncio.sleep(0.05)
            await fake.tell(exit_of(container_id))
            await stopping
            await scene.record()
            await nothing_more(stream)
            fake.next("RemoveContainer", Late(0.1))
            removing = asyncio.ensure_future(runtime.remove_container(container_id))
            await asyncio.sleep(0.05)
            await fake.tell(told("/containers/delete", containerd_events.ContainerDelete(id=container_id)))
            await removing
            await scene.record()
            await nothing_more(stream)

    run(scenario())


def test_what_we_stop_is_told_when_nobody_looks() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            stream = runtime.events()
            fake.next("StopContainer", Late(0.1))
            stopping = asyncio.ensure_future(runtime.stop_container(container_id, 1))
            await asyncio.sleep(0.05)
            await scene.record()  # too early to see it
            await fake.tell(exit_of(container_id))
            await stopping
            assert await first(stream) == (scene.uid, container_id, STOPPED)

    run(scenario())


def test_a_start_of_our_own_is_told_before_the_end_that_follows_at_once() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.create(await scene.sandbox())
            stream = runtime.events()
            await fake.tell(exit_of("nobody", "nothing"))  # somebody hears
            await runtime.start_container(container_id)
            fake.exit(container_id, 0)
            await fake.tell(exit_of(container_id))
            assert await first(stream) == (scene.uid, container_id, STARTED)
            assert await first(stream) == (scene.uid, container_id, STOPPED)
            await nothing_more(stream)

    run(scenario())


def test_a_start_of_our_own_is_told_when_nobody_looks() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.create(await scene.sandbox())
            stream = runtime.events()
            await fake.tell(exit_of("nobody", "nothing"))  # somebody hears
            await runtime.start_container(container_id)
            assert await first(stream) == (scene.uid, container_id, STARTED)
            assert fake.count("ContainerStatus") == 0

    run(scenario())


def test_a_start_by_somebody_else_is_told_and_its_pod_looked_up() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as maker, with_fake_at(fake) as runtime:
            stream = runtime.events()
            scene = Scene(maker)
            container_id = await scene.start()
            await fake.tell(told("/tasks/start", containerd_events.TaskStart(container_id=container_id)))
            assert await first(stream) == (scene.uid, container_id, STARTED)

    run(scenario())


def test_news_of_what_belongs_to_no_pod_is_dropped() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            stream = runtime.events()
            fake.containers["stranger"] = cri.ContainerStatus(id="stranger", state=cri.CONTAINER_EXITED)
            fake.homes["stranger"] = "elsewhere"
            await fake.tell(exit_of("stranger"))
            await fake.tell(exit_of("unknown"))
            await asyncio.sleep(1.5)
            fake.exit(container_id, 0)
            await fake.tell(exit_of(container_id))
            assert await first(stream) == (scene.uid, container_id, STOPPED)

    run(scenario())


def test_a_want_of_memory_that_is_told_late_is_seen() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            fake.exit(container_id, 137)
            status = fake.containers[container_id]
            status.started_at = status.finished_at = 1  # long ago: remembered when seen
            assert (await scene.container(container_id)).reason == "Error"
            status.reason = "OOMKilled"
            assert (await scene.container(container_id)).reason == "Error"
            stream = runtime.events()
            await fake.tell(told("/tasks/oom", containerd_events.TaskOOM(container_id=container_id)))
            assert await first(stream) == (scene.uid, container_id, STOPPED)
            assert (await scene.container(container_id)).reason == "OOMKilled"

    run(scenario())


def test_the_end_of_a_sandbox_is_told() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            assert (await scene.record()).ips == ("192.0.2.9",)
            stream = runtime.events()
            fake.sandboxes[sandbox_id].state = cri.SANDBOX_NOTREADY
            await fake.tell(exit_of(sandbox_id))
            assert await first(stream) == (scene.uid, sandbox_id, STOPPED)
            assert (await scene.record()).ips == ()

    run(scenario())


def test_a_broken_stream_is_told_and_a_new_one_works() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with with_fake(fake) as runtime:
            container_id = await Scene(runtime).start()
            stream = runtime.events()
            await fake.tell(exit_of("nobody", "nothing"))
            await fake.stop()
            with pytest.raises(RuntimeUnavailable, match="cannot hear of containers any more"):
                await first(stream)
            await fake.serve(fake.path)
            fake.exit(container_id, 0)
            while True:
                try:
                    stream = runtime.events()
                    async with asyncio.timeout(0.5):
                        await fake.tell(exit_of(container_id))
                    assert (await first(stream))[1:] == (container_id, STOPPED)
                except (RuntimeUnavailable, TimeoutError):
                    continue
                return

    run(scenario())


def test_a_runtime_without_any_stream_says_so() -> None:
    async def scenario() -> None:
        async with with_fake(FakeCri()) as runtime:
            with pytest.raises(RuntimeUnavailable, match="serves no stream of events"):
                await first(runtime.events())

    run(scenario())


def test_a_runtime_that_was_told_to_tell_nothing_says_how_to_change_that() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.unknown_calls.remove("GetContainerEvents")
        fake.ends_streams = True
        async with with_fake(fake) as runtime:
            with pytest.raises(RuntimeUnavailable, match=r"serves no stream of events.*enable_pod_events"):
                await first(runtime.events())

    run(scenario())


def test_listening_ends_when_the_runtime_is_closed() -> None:
    async def scenario() -> None:
        async with with_fake(with_containerds_stream()) as runtime:
            stream = runtime.events()
        with pytest.raises(StopAsyncIteration):
            await first(stream)

    run(scenario())
