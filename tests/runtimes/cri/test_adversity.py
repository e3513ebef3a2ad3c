"""A runtime that refuses, hangs, answers late or goes away: what the port promises all the same."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerState
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.fake_server import FakeCri, Hang, Late, LoseAnswer, Refuse
from tests.runtimes.cri.scenes import Scene, eventually, until_it_answers, with_fake

UNKNOWN = grpc.StatusCode.UNKNOWN


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def runtime_that(*, hands_back: bool) -> FakeCri:
    """One that refuses names that are taken, or one that answers with what has them."""
    fake = FakeCri()
    fake.hands_back = hands_back
    return fake


each_way_with_names = pytest.mark.parametrize("hands_back", [False, True], ids=["as containerd", "as CRI-O"])


# Sandboxes.


def test_a_sandbox_whose_answer_was_lost_is_adopted_by_the_next_try() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            fake.next("RunPodSandbox", LoseAnswer())
            with pytest.raises(CallTimedOut):
                await scene.sandbox()
            (made,) = fake.sandboxes
            assert await scene.sandbox() == made
            assert fake.count("RunPodSandbox") == 1  # who is in doubt looks first

    run(scenario())


@each_way_with_names
def test_a_sandbox_that_is_reserved_and_ready_is_adopted(hands_back: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(hands_back=hands_back)
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            first = await scene.sandbox()
            assert await scene.sandbox() == first
            assert list(fake.sandboxes) == [first]

    run(scenario())


@each_way_with_names
def test_a_sandbox_that_is_reserved_and_not_ready_is_made_anew(hands_back: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(hands_back=hands_back)
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            first = await scene.sandbox()
            await runtime.stop_sandbox(first)
            second = await scene.sandbox()
            assert (list(fake.sandboxes), second != first) == ([second], True)

    run(scenario())


def test_a_name_reserved_for_something_unlisted_is_cleaned_up_by_its_id_and_tried_once_more() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            words = 'failed to reserve sandbox name "x": name "x" is reserved for "ghost"'
            fake.next("RunPodSandbox", Refuse(UNKNOWN, words))
            assert await Scene(runtime).sandbox() in fake.sandboxes
            removed = [asked.pod_sandbox_id for name, asked in fake.calls if name == "RemovePodSandbox"]
            assert removed == ["ghost"]

    run(scenario())


def test_a_name_that_stays_reserved_is_told_after_the_second_try() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            refuse = Refuse(UNKNOWN, 'name "x" is reserved for "ghost"')
            fake.next("RunPodSandbox", refuse, refuse)
            with pytest.raises(RuntimeRefused, match='rpc error: code = Unknown desc = name "x" is reserved'):
                await Scene(runtime).sandbox()
            assert fake.count("RunPodSandbox") == 2

    run(scenario())


def test_of_two_sandboxes_of_one_attempt_the_newer_stays() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            first = await scene.sandbox()
            double = cri.PodSandboxStatus()
            double.CopyFrom(fake.sandboxes[first])
            double.id, double.created_at = "double", double.created_at + 1
            fake.sandboxes["double"] = double
            assert await scene.sandbox() == "double"
            assert list(fake.sandboxes) == ["double"]

    run(scenario())


def test_a_sandbox_that_comes_late_is_found_and_no_second_one_is_made() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            fake.next("RunPodSandbox", Late(0.9))
            with pytest.raises(CallTimedOut):
                await scene.sandbox()  # its deadline comes first, and it is not there yet
            assert fake.sandboxes == {}
            await eventually(lambda: bool(fake.sandboxes), "the late sandbox is there")
            (late,) = fake.sandboxes
            assert await scene.sandbox() == late
            assert (list(fake.sandboxes), fake.cut_off) == ([late], ["RunPodSandbox"])

    run(scenario())


def test_a_clear_no_leaves_no_doubt() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            fake.next("RunPodSandbox", Refuse(UNKNOWN, "no room"))
            with pytest.raises(RuntimeRefused, match="no room"):
                await scene.sandbox()
            await scene.sandbox()
            assert fake.count("ListPodSandbox") == 0

    run(scenario())


# Containers.


def test_a_container_in_the_way_is_removed_also_when_its_holder_is_not_told() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            old = await scene.create(sandbox_id)
            fake.next("CreateContainer", Refuse(UNKNOWN, "reserving ctr name k8s_c_0 for id new: name is reserved"))
            new = await scene.create(sandbox_id)
            assert (list(fake.containers), new != old) == ([new], True)

    run(scenario())


@each_way_with_names
def test_a_container_that_never_started_is_replaced_and_a_started_one_is_kept(hands_back: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(hands_back=hands_back)
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            first = await scene.create(sandbox_id, "sh")
            second = await scene.create(sandbox_id, "sh")
            assert (list(fake.containers), first != second) == ([second], True)
            await runtime.start_container(second)
            for state in (cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED):
                with pytest.raises(RuntimeRefused, match="has already started"):
                    await scene.create(sandbox_id, "sh")
                assert [(it.id, it.state) for it in fake.containers.values()] == [(second, state)]
                fake.exit(second, 0)

    run(scenario())


@each_way_with_names
def test_what_gives_way_to_a_container_is_of_its_own_name_and_attempt(hands_back: bool) -> None:
    """The container before it has the logs and the exit code that people ask for, and its neighbour runs."""

    async def scenario() -> None:
        fake = runtime_that(hands_back=hands_back)
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            before = await scene.create(sandbox_id, "sh", name="app", attempt=0)
            await runtime.start_container(before)
            fake.exit(before, 1)
            neighbour = await scene.create(sandbox_id, "sh", name="proxy", attempt=1)
            await runtime.start_container(neighbour)
            in_the_way = await scene.create(sandbox_id, "sh", name="app", attempt=1)
            made = await scene.create(sandbox_id, "sh", name="app", attempt=1)
            assert list(fake.containers) == [before, neighbour, made]
            assert in_the_way != made

    run(scenario())


@each_way_with_names
def test_what_gives_way_to_a_sandbox_is_of_its_own_attempt(hands_back: bool) -> None:
    async def scenario() -> None:
        fake = runtime_that(hands_back=hands_back)
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            before = await scene.sandbox(attempt=0)
            await runtime.stop_sandbox(before)
            in_the_way = await scene.sandbox(attempt=1)
            fake.sandboxes[in_the_way].state = cri.SANDBOX_NOTREADY
            made = await scene.sandbox(attempt=1)
            assert list(fake.sandboxes) == [before, made]

    run(scenario())


def test_a_container_that_somebody_saw_while_it_was_created_is_kept() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            fake.next("CreateContainer", LoseAnswer())
            with pytest.raises(CallTimedOut):
                await scene.create(sandbox_id, "sh")
            (made,) = (await scene.record()).containers
            fake.hands_back = True
            assert await scene.create(sandbox_id, "sh") == made.id

    run(scenario())


ENDINGS = {  # who answers, what is ended, what is asked for
    "containerd is asked once to stop": ("containerd", "stop_sandbox", ["StopPodSandbox"]),
    "containerd is asked once to remove": ("containerd", "remove_sandbox", ["RemovePodSandbox"]),
    "CRI-O would be patient with what runs": (
        "cri-o", "stop_sandbox", ["ListContainers", "StopContainer", "StopPodSandbox"]),
    "CRI-O would be so before it removes, too": (
        "cri-o", "remove_sandbox", ["ListContainers", "StopContainer", "StopPodSandbox", "RemovePodSandbox"]),
    "who knows what others do": ("fakerd", "stop_sandbox", ["ListContainers", "StopContainer", "StopPodSandbox"]),
}  # fmt: skip


@pytest.mark.parametrize("name, deed, expected", ENDINGS.values(), ids=ENDINGS.keys())
def test_what_still_runs_in_a_sandbox_is_not_waited_for(name: str, deed: str, expected: list[str]) -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.name = name
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            over = await scene.create(sandbox_id, "sh", name="over")
            fake.exit(over, 0)
            created = await scene.create(sandbox_id, "sh")
            fake.calls.clear()
            await getattr(runtime, deed)(sandbox_id)
            assert [call for call, _ in fake.calls] == expected
            stops = [(asked.container_id, asked.timeout) for call, asked in fake.calls if call == "StopContainer"]
            assert stops == [(created, 0)] * expected.count("StopContainer")

    run(scenario())


def test_a_sandbox_that_takes_long_to_stop_has_all_its_time_in_the_end() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.name = "cri-o"
        async with with_fake(fake) as runtime:
            sandbox_id = await Scene(runtime).sandbox()
            fake.next("StopPodSandbox", Hang())
            await runtime.stop_sandbox(sandbox_id)
            assert (fake.count("StopPodSandbox"), fake.sandboxes[sandbox_id].state) == (2, cri.SANDBOX_NOTREADY)

    run(scenario())


def test_a_container_in_a_sandbox_that_is_gone_is_refused_in_the_runtimes_words() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            sandbox_id = await scene.sandbox()
            fake.sandboxes.clear()
            with pytest.raises(TryLater, match=f'^failed to find sandbox id "{sandbox_id}": not found$'):
                await scene.create(sandbox_id)

    run(scenario())


def test_a_failed_start_is_told_without_its_code_and_the_container_is_found() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.create(await scene.sandbox())
            fake.next("StartContainer", Refuse(UNKNOWN, "failed to create containerd task: no such file"))
            with pytest.raises(RuntimeRefused, match=r"^failed to create containerd task: no such file$"):
                await runtime.start_container(container_id)
            assert (await scene.container(container_id)).state is ContainerState.CREATED

    run(scenario())


def test_a_start_that_was_refused_for_being_done_is_done() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            await runtime.start_container(container_id)
            fake.exit(container_id, 0)
            await runtime.start_container(container_id)
            assert (await scene.container(container_id)).state is ContainerState.EXITED

    run(scenario())


def test_what_cannot_be_removed_while_it_runs_is_stopped_first() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            container_id = await Scene(runtime).start()
            fake.next("RemoveContainer", Refuse(UNKNOWN, "container is still running"))
            await runtime.remove_container(container_id)
            assert fake.containers == {}
            fake.next("RemovePodSandbox", Refuse(UNKNOWN, "sandbox is not fully stopped"))
            (sandbox_id,) = fake.sandboxes
            await runtime.remove_sandbox(sandbox_id)
            assert fake.sandboxes == {}

    run(scenario())


def test_what_is_gone_between_a_list_and_a_status_is_left_out() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            await scene.start()
            gone = Refuse(grpc.StatusCode.NOT_FOUND, "not found")
            fake.next("ContainerStatus", gone)
            fake.next("PodSandboxStatus", gone)
            record = await scene.record()
            assert (record.sandboxes, record.containers) == ((), ())

    run(scenario())


# Hanging, and going away.


def test_a_call_that_hangs_meets_its_deadline_and_is_cancelled_on_the_wire() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            container_id = await Scene(runtime).start()
            fake.next("StopContainer", Hang())
            with pytest.raises(CallTimedOut):
                await runtime.stop_container(container_id, 0)
            await eventually(lambda: fake.cut_off == ["StopContainer"], "the server learns that nobody waits")

    run(scenario())


def test_one_hung_call_holds_nobody_up() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            stuck, other = Scene(runtime), Scene(runtime)
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


def test_a_runtime_that_restarts_is_missed_at_once_and_found_again() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime)
            container_id = await scene.start()
            await fake.stop()
            begun = asyncio.get_running_loop().time()
            with pytest.raises(RuntimeUnavailable):
                await scene.record()
            assert asyncio.get_running_loop().time() - begun < 30
            await fake.serve(fake.path)
            await until_it_answers(runtime)
            assert (await scene.container(container_id)).state is ContainerState.RUNNING

    run(scenario())


def test_a_pod_nobody_has_heard_of_is_an_empty_record() -> None:
    async def scenario() -> None:
        async with with_fake(FakeCri()) as runtime:
            record = await runtime.pod_record(PodUID("nobody"))
            assert (record.uid, record.name, record.sandboxes) == ("nobody", "", ())

    run(scenario())
