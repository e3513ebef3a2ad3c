"""The guarantees of the Runtime port with a runtime that refuses, hangs, answers late or restarts."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import RecordState
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.cri_pod import CriPod, runtime_on_fake, wait_until, wait_until_available
from tests.runtimes.cri.fake_server import FakeCri
from tests.runtimes.cri.faults import Hang, Late, LoseResponse, Refuse

UNKNOWN = grpc.StatusCode.UNKNOWN


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def runtime_that(*, returns_existing: bool) -> FakeCri:
    """Return a fake that rejects reserved names, or one that returns the existing object."""
    fake = FakeCri()
    fake.returns_existing = returns_existing
    return fake


each_name_reservation = pytest.mark.parametrize("returns_existing", [False, True], ids=["as containerd", "as CRI-O"])


# Sandboxes.


def test_a_sandbox_whose_response_was_lost_is_adopted() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            fake.next("RunPodSandbox", LoseResponse(None))
            with pytest.raises(CallTimedOut):
                await cri_pod.sandbox()
            (made,) = fake.sandboxes
            assert await cri_pod.sandbox() == made
            assert fake.count("RunPodSandbox") == 1  # after an unknown outcome, it lists first

    run(scenario())


@each_name_reservation
def test_a_reserved_sandbox_that_is_ready_is_adopted(returns_existing: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(returns_existing=returns_existing)
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            first = await cri_pod.sandbox()
            assert await cri_pod.sandbox() == first
            assert list(fake.sandboxes) == [first]

    run(scenario())


@each_name_reservation
def test_a_reserved_sandbox_that_is_not_ready_is_replaced(returns_existing: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(returns_existing=returns_existing)
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            first = await cri_pod.sandbox()
            await runtime.stop_sandbox(first)
            second = await cri_pod.sandbox()
            assert (list(fake.sandboxes), second != first) == ([second], True)

    run(scenario())


def test_an_unlisted_holder_of_the_name_is_removed_by_id_and_the_call_retried() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            words = 'failed to reserve sandbox name "x": name "x" is reserved for "leftover"'
            fake.next("RunPodSandbox", Refuse(UNKNOWN, words))
            assert await CriPod(runtime).sandbox() in fake.sandboxes
            removed = [request.pod_sandbox_id for name, request in fake.calls if name == "RemovePodSandbox"]
            assert removed == ["leftover"]

    run(scenario())


def test_a_name_that_stays_taken_is_reported_after_one_retry() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            refuse = Refuse(UNKNOWN, 'name "x" is reserved for "leftover"')
            fake.next("RunPodSandbox", refuse, refuse)
            with pytest.raises(RuntimeRefused, match='rpc error: code = Unknown desc = name "x" is reserved'):
                await CriPod(runtime).sandbox()
            assert fake.count("RunPodSandbox") == 2

    run(scenario())


def test_of_two_sandboxes_of_an_attempt_the_newer_is_kept() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            first = await cri_pod.sandbox()
            double = cri.PodSandboxStatus()
            double.CopyFrom(fake.sandboxes[first])
            double.id, double.created_at = "double", double.created_at + 1
            fake.sandboxes["double"] = double
            assert await cri_pod.sandbox() == "double"
            assert list(fake.sandboxes) == ["double"]

    run(scenario())


def test_a_sandbox_created_late_is_adopted() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            fake.next("RunPodSandbox", Late(0.9))
            with pytest.raises(CallTimedOut):
                await cri_pod.sandbox()  # its deadline comes first, and it is not there yet
            assert fake.sandboxes == {}
            await wait_until(lambda: bool(fake.sandboxes), "the late sandbox is there")
            (late,) = fake.sandboxes
            assert await cri_pod.sandbox() == late
            assert (list(fake.sandboxes), fake.cancelled) == ([late], ["RunPodSandbox"])

    run(scenario())


def test_a_refused_sandbox_needs_no_check_at_the_next_call() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            fake.next("RunPodSandbox", Refuse(UNKNOWN, "no room"))
            with pytest.raises(RuntimeRefused, match="no room"):
                await cri_pod.sandbox()
            await cri_pod.sandbox()
            assert fake.count("ListPodSandbox") == 0

    run(scenario())


# Containers.


def test_a_conflicting_container_is_removed_even_if_its_id_is_unknown() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            old = await cri_pod.create(sandbox_id)
            fake.next("CreateContainer", Refuse(UNKNOWN, "reserving ctr name k8s_c_0 for id new: name is reserved"))
            new = await cri_pod.create(sandbox_id)
            assert (list(fake.containers), new != old) == ([new], True)

    run(scenario())


@each_name_reservation
def test_a_container_that_never_started_is_replaced_and_a_started_one_is_kept(returns_existing: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(returns_existing=returns_existing)
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            first = await cri_pod.create(sandbox_id, "sh")
            second = await cri_pod.create(sandbox_id, "sh")
            assert (list(fake.containers), first != second) == ([second], True)
            await runtime.start_container(second)
            for state in (cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED):
                with pytest.raises(RuntimeRefused, match="has already started"):
                    await cri_pod.create(sandbox_id, "sh")
                assert [(it.id, it.state) for it in fake.containers.values()] == [(second, state)]
                fake.exit(second, 0)

    run(scenario())


@each_name_reservation
def test_only_containers_of_the_same_name_and_attempt_are_replaced(returns_existing: bool) -> None:
    """The previous container has the log and the exit code, and the other container runs."""

    async def scenario() -> None:
        fake = runtime_that(returns_existing=returns_existing)
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            before = await cri_pod.create(sandbox_id, "sh", name="app", attempt=0)
            await runtime.start_container(before)
            fake.exit(before, 1)
            neighbour = await cri_pod.create(sandbox_id, "sh", name="proxy", attempt=1)
            await runtime.start_container(neighbour)
            in_the_way = await cri_pod.create(sandbox_id, "sh", name="app", attempt=1)
            made = await cri_pod.create(sandbox_id, "sh", name="app", attempt=1)
            assert list(fake.containers) == [before, neighbour, made]
            assert in_the_way != made

    run(scenario())


@each_name_reservation
def test_only_sandboxes_of_the_same_attempt_are_replaced(returns_existing: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(returns_existing=returns_existing)
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            before = await cri_pod.sandbox(attempt=0)
            await runtime.stop_sandbox(before)
            in_the_way = await cri_pod.sandbox(attempt=1)
            fake.sandboxes[in_the_way].state = cri.SANDBOX_NOTREADY
            made = await cri_pod.sandbox(attempt=1)
            assert list(fake.sandboxes) == [before, made]

    run(scenario())


def test_a_container_listed_during_its_creation_is_kept() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            fake.next("CreateContainer", LoseResponse(None))
            with pytest.raises(CallTimedOut):
                await cri_pod.create(sandbox_id, "sh")
            (made,) = (await cri_pod.record()).containers
            fake.returns_existing = True
            assert await cri_pod.create(sandbox_id, "sh") == made.id

    run(scenario())


ENDINGS = {  # runtime name, call, expected CRI calls
    "containerd gets one stop call": ("containerd", "stop_sandbox", ["StopPodSandbox"]),
    "containerd gets one remove call": ("containerd", "remove_sandbox", ["RemovePodSandbox"]),
    "CRI-O gets a stop call for each running container": (
        "cri-o", "stop_sandbox", ["ListContainers", "StopContainer", "StopPodSandbox"]),
    "CRI-O gets the stop calls before a removal as well": (
        "cri-o", "remove_sandbox", ["ListContainers", "StopContainer", "StopPodSandbox", "RemovePodSandbox"]),
    "an unknown runtime is treated like CRI-O": (
        "fakerd", "stop_sandbox", ["ListContainers", "StopContainer", "StopPodSandbox"]),
}  # fmt: skip


@pytest.mark.parametrize("name, action, expected", ENDINGS.values(), ids=ENDINGS.keys())
def test_running_containers_of_a_sandbox_are_killed(name: str, action: str, expected: list[str]) -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.name = name
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            over = await cri_pod.create(sandbox_id, "sh", name="over")
            fake.exit(over, 0)
            created = await cri_pod.create(sandbox_id, "sh")
            fake.calls.clear()
            await getattr(runtime, action)(sandbox_id)
            assert [call for call, _ in fake.calls] == expected
            stops = [(request.container_id, request.timeout) for call, request in fake.calls if call == "StopContainer"]
            assert stops == [(created, 0)] * expected.count("StopContainer")

    run(scenario())


def test_a_slow_sandbox_stop_gets_the_whole_deadline() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.name = "cri-o"
        async with runtime_on_fake(fake) as runtime:
            sandbox_id = await CriPod(runtime).sandbox()
            fake.next("StopPodSandbox", Hang())
            await runtime.stop_sandbox(sandbox_id)
            assert (fake.count("StopPodSandbox"), fake.sandboxes[sandbox_id].state) == (2, cri.SANDBOX_NOTREADY)

    run(scenario())


def test_a_container_in_a_removed_sandbox_is_refused_with_the_runtimes_message() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            sandbox_id = await cri_pod.sandbox()
            fake.sandboxes.clear()
            with pytest.raises(TryLater, match=f'^failed to find sandbox id "{sandbox_id}": not found$'):
                await cri_pod.create(sandbox_id)

    run(scenario())


def test_a_failed_start_is_reported_without_grpc_code() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.create(await cri_pod.sandbox())
            fake.next("StartContainer", Refuse(UNKNOWN, "failed to create containerd task: no such file"))
            with pytest.raises(RuntimeRefused, match=r"^failed to create containerd task: no such file$"):
                await runtime.start_container(container_id)
            assert (await cri_pod.container(container_id)).state is RecordState.CREATED

    run(scenario())


def test_a_refused_start_of_a_started_container_succeeds() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            await runtime.start_container(container_id)
            fake.exit(container_id, 0)
            await runtime.start_container(container_id)
            assert (await cri_pod.container(container_id)).state is RecordState.EXITED

    run(scenario())


def test_objects_that_cannot_be_removed_while_running_are_stopped_first() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            container_id = await CriPod(runtime).start()
            fake.next("RemoveContainer", Refuse(UNKNOWN, "container is still running"))
            await runtime.remove_container(container_id)
            assert fake.containers == {}
            fake.next("RemovePodSandbox", Refuse(UNKNOWN, "sandbox is not fully stopped"))
            (sandbox_id,) = fake.sandboxes
            await runtime.remove_sandbox(sandbox_id)
            assert fake.sandboxes == {}

    run(scenario())


def test_objects_removed_before_their_status_are_skipped() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            await cri_pod.start()
            gone = Refuse(grpc.StatusCode.NOT_FOUND, "not found")
            fake.next("ContainerStatus", gone)
            fake.next("PodSandboxStatus", gone)
            record = await cri_pod.record()
            assert (record.sandboxes, record.containers) == ((), ())

    run(scenario())


# Hanging, and going away.


def test_a_hanging_call_is_cancelled_in_the_runtime_at_its_deadline() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            container_id = await CriPod(runtime).start()
            fake.next("StopContainer", Hang())
            with pytest.raises(CallTimedOut):
                await runtime.stop_container(container_id, 0)
            await wait_until(lambda: fake.cancelled == ["StopContainer"], "the server receives the cancellation")

    run(scenario())


def test_one_hung_call_blocks_no_other() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            stuck, other = CriPod(runtime), CriPod(runtime)
            fake.next("RunPodSandbox", Hang())
            async with asyncio.TaskGroup() as group:
                hung = group.create_task(asyncio.wait({asyncio.ensure_future(_failed(stuck.sandbox()))}))
                await asyncio.sleep(0.05)
                assert await other.start() in fake.containers
                assert not hung.done()

    async def _failed(call: Coroutine[Any, Any, str]) -> None:
        with pytest.raises(CallTimedOut):
            await call

    run(scenario())


def test_a_restart_of_the_runtime_is_detected() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime)
            container_id = await cri_pod.start()
            await fake.stop()
            begun = asyncio.get_running_loop().time()
            with pytest.raises(RuntimeUnavailable):
                await cri_pod.record()
            assert asyncio.get_running_loop().time() - begun < 30
            await fake.serve(fake.path)
            await wait_until_available(runtime)
            assert (await cri_pod.container(container_id)).state is RecordState.RUNNING

    run(scenario())


def test_an_unknown_pod_has_an_empty_record() -> None:
    async def scenario() -> None:
        async with runtime_on_fake(FakeCri()) as runtime:
            record = await runtime.pod_record(PodUID("unknown"))
            assert (record.uid, record.name, record.sandboxes) == ("unknown", "", ())

    run(scenario())
