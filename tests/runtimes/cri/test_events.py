"""Event streams: the CRI stream, the containerd stream, and broken streams."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.runtime import RecordState
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.runtimes.cri import events
from podkeeper.runtimes.cri.schema import containerd_events, cri
from tests.runtimes.cri.cri_pod import CriPod, runtime_on_fake, runtime_on_running_fake
from tests.runtimes.cri.fake_server import FakeCri, containerd_event
from tests.runtimes.cri.faults import Late

STARTED, STOPPED, DELETED = RuntimeEventType.STARTED, RuntimeEventType.STOPPED, RuntimeEventType.DELETED


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def first(stream: AsyncIterator[RuntimeEvent]) -> tuple[str, str, RuntimeEventType]:
    async with asyncio.timeout(10):
        event = await anext(stream)
    return event.uid, event.container_id, event.type


def with_containerds_stream() -> FakeCri:
    """A server as containerd 1.6: no GetContainerEvents, but its own stream."""
    fake = FakeCri()
    fake.unknown_services.clear()
    return fake


def exit_of(container_id: str, process: str = "") -> Any:
    return containerd_event(
        "/tasks/exit", containerd_events.TaskExit(container_id=container_id, id=process or container_id)
    )


def test_events_of_cris_own_stream_are_forwarded() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.unknown_calls.clear()
        async with runtime_on_fake(fake) as runtime:
            streams = runtime.events(), runtime.events()
            for kind in (cri.CONTAINER_STARTED_EVENT, cri.CONTAINER_STOPPED_EVENT):
                box = cri.PodSandboxStatus(id="box", metadata=cri.PodSandboxMetadata(uid="uid"))
                await fake.send_event(
                    cri.ContainerEventResponse(
                        container_id="c", container_event_type=kind, created_at=1_000_000_000, pod_sandbox_status=box
                    )
                )
            for stream in streams:
                assert await first(stream) == ("uid", "c", STARTED)
                assert await first(stream) == ("uid", "c", STOPPED)

    run(scenario())


def test_an_exit_is_forwarded_after_the_status_confirms_it() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            stream = runtime.events()
            await fake.send_event(exit_of(container_id))
            waiting = asyncio.ensure_future(first(stream))
            await asyncio.sleep(0.1)
            assert not waiting.done()  # an inspection now shows it running, and no other event would follow
            fake.exit(container_id, 1)
            assert await waiting == (cri_pod.uid, container_id, STOPPED)
            assert (await cri_pod.container(container_id)).state is RecordState.EXITED

    run(scenario())


def test_the_exit_of_a_command_is_no_event() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            stream = runtime.events()
            await fake.send_event(exit_of(container_id, "a-command"))
            await fake.send_event(
                containerd_event("/containers/delete", containerd_events.ContainerDelete(id=container_id))
            )
            assert await first(stream) == (cri_pod.uid, container_id, DELETED)

    run(scenario())


def test_the_exit_of_a_command_is_not_the_exit_of_its_container() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            stream = runtime.events()
            calls = fake.count("ContainerStatus")
            await fake.send_event(exit_of(container_id, "a-command"))
            await asyncio.sleep(0.1)
            assert fake.count("ContainerStatus") == calls  # there is nothing to confirm
            fake.exit(container_id, 1)
            await fake.send_event(exit_of(container_id))
            assert await first(stream) == (cri_pod.uid, container_id, STOPPED)
            await asyncio.sleep(0.1)
            await fake.send_event(
                containerd_event("/containers/delete", containerd_events.ContainerDelete(id=container_id))
            )
            assert await first(stream) == (cri_pod.uid, container_id, DELETED)  # and no second end before it

    run(scenario())


async def nothing_more(stream: AsyncIterator[RuntimeEvent]) -> None:
    """Wait longer than any event of our own calls is held back."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(events.OWN_CHANGE_SECONDS + 0.5):
            await anext(stream)


def test_events_of_our_own_calls_are_dropped_after_an_inspection() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.create(await cri_pod.sandbox())
            stream = runtime.events()
            await fake.send_event(exit_of("unknown", "unknown"))  # wait for the subscription
            await runtime.start_container(container_id)
            await cri_pod.record()
            await nothing_more(stream)
            fake.next("StopContainer", Late(0.1))
            stopping = asyncio.ensure_future(runtime.stop_container(container_id, 1))
            await asyncio.sleep(0.05)
            await fake.send_event(exit_of(container_id))
            await stopping
            await cri_pod.record()
            await nothing_more(stream)
            fake.next("RemoveContainer", Late(0.1))
            removing = asyncio.ensure_future(runtime.remove_container(container_id))
            await asyncio.sleep(0.05)
            await fake.send_event(
                containerd_event("/containers/delete", containerd_events.ContainerDelete(id=container_id))
            )
            await removing
            await cri_pod.record()
            await nothing_more(stream)

    run(scenario())


def test_our_own_stop_is_forwarded_without_an_inspection() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            stream = runtime.events()
            fake.next("StopContainer", Late(0.1))
            stopping = asyncio.ensure_future(runtime.stop_container(container_id, 1))
            await asyncio.sleep(0.05)
            await cri_pod.record()  # too early to see it
            await fake.send_event(exit_of(container_id))
            await stopping
            assert await first(stream) == (cri_pod.uid, container_id, STOPPED)

    run(scenario())


def test_our_own_start_is_forwarded_before_an_immediate_exit() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.create(await cri_pod.sandbox())
            stream = runtime.events()
            await fake.send_event(exit_of("unknown", "unknown"))  # wait for the subscription
            await runtime.start_container(container_id)
            fake.exit(container_id, 0)
            await fake.send_event(exit_of(container_id))
            assert await first(stream) == (cri_pod.uid, container_id, STARTED)
            assert await first(stream) == (cri_pod.uid, container_id, STOPPED)
            await nothing_more(stream)

    run(scenario())


def test_our_own_start_is_forwarded_without_an_inspection() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.create(await cri_pod.sandbox())
            stream = runtime.events()
            await fake.send_event(exit_of("unknown", "unknown"))  # wait for the subscription
            await runtime.start_container(container_id)
            assert await first(stream) == (cri_pod.uid, container_id, STARTED)
            assert fake.count("ContainerStatus") == 0

    run(scenario())


def test_a_start_by_another_client_is_forwarded_after_a_lookup() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as maker, runtime_on_running_fake(fake) as runtime:
            stream = runtime.events()
            cri_pod = CriPod(maker)
            container_id = await cri_pod.start()
            await fake.send_event(
                containerd_event("/tasks/start", containerd_events.TaskStart(container_id=container_id))
            )
            assert await first(stream) == (cri_pod.uid, container_id, STARTED)

    run(scenario())


def test_events_of_objects_without_a_pod_are_dropped() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            stream = runtime.events()
            fake.containers["stranger"] = cri.ContainerStatus(id="stranger", state=cri.CONTAINER_EXITED)
            fake.sandbox_of["stranger"] = "elsewhere"
            await fake.send_event(exit_of("stranger"))
            await fake.send_event(exit_of("unknown"))
            await asyncio.sleep(1.5)
            fake.exit(container_id, 0)
            await fake.send_event(exit_of(container_id))
            assert await first(stream) == (cri_pod.uid, container_id, STOPPED)

    run(scenario())


def test_a_late_oom_report_is_applied() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            fake.exit(container_id, 137)
            status = fake.containers[container_id]
            status.started_at = status.finished_at = 1  # long ago: remembered when seen
            assert (await cri_pod.container(container_id)).reason == "Error"
            status.reason = "OOMKilled"
            assert (await cri_pod.container(container_id)).reason == "Error"
            stream = runtime.events()
            await fake.send_event(containerd_event("/tasks/oom", containerd_events.TaskOOM(container_id=container_id)))
            assert await first(stream) == (cri_pod.uid, container_id, STOPPED)
            assert (await cri_pod.container(container_id)).reason == "OOMKilled"

    run(scenario())


def test_the_stop_of_a_sandbox_is_forwarded() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            assert (await cri_pod.record()).ips == ("192.0.2.9",)
            stream = runtime.events()
            fake.sandboxes[sandbox_id].state = cri.SANDBOX_NOTREADY
            await fake.send_event(exit_of(sandbox_id))
            assert await first(stream) == (cri_pod.uid, sandbox_id, STOPPED)
            assert (await cri_pod.record()).ips == ()

    run(scenario())


def test_a_broken_event_stream_is_reported_and_a_new_one_works() -> None:
    async def scenario() -> None:
        fake = with_containerds_stream()
        async with runtime_on_fake(fake) as runtime:
            container_id = await CriPod(runtime).start()
            stream = runtime.events()
            await fake.send_event(exit_of("unknown", "unknown"))
            await fake.stop()
            with pytest.raises(RuntimeUnavailable, match="cannot receive events"):
                await first(stream)
            await fake.serve(fake.path)
            fake.exit(container_id, 0)
            while True:
                try:
                    stream = runtime.events()
                    async with asyncio.timeout(0.5):
                        await fake.send_event(exit_of(container_id))
                    assert (await first(stream))[1:] == (container_id, STOPPED)
                except (RuntimeUnavailable, TimeoutError):
                    continue
                return

    run(scenario())


def test_a_runtime_without_event_streams_is_reported() -> None:
    async def scenario() -> None:
        async with runtime_on_fake(FakeCri()) as runtime:
            with pytest.raises(RuntimeUnavailable, match="has no event stream"):
                await first(runtime.events())

    run(scenario())


def test_disabled_events_of_crio_are_reported_with_a_hint() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.unknown_calls.remove("GetContainerEvents")
        fake.ends_streams = True
        async with runtime_on_fake(fake) as runtime:
            with pytest.raises(RuntimeUnavailable, match=r"has no event stream.*enable_pod_events"):
                await first(runtime.events())

    run(scenario())


def test_event_streams_end_when_the_runtime_is_closed() -> None:
    async def scenario() -> None:
        async with runtime_on_fake(with_containerds_stream()) as runtime:
            stream = runtime.events()
        with pytest.raises(StopAsyncIteration):
            await first(stream)

    run(scenario())
