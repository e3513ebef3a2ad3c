"""The fake runtime follows its scripts and faults in exact virtual time. `tests/contracts` checks the runtime port."""

import asyncio
import json
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from podkeeper.model.errors import CallTimedOut, ImagePullFailed, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.model.runtime import ContainerRecord, NetworkMode, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeEventType, SandboxConfig
from podkeeper.ports.runtime import Runtime
from podkeeper.runtimes.fake import ANNOTATION_PREFIX, Behaviour, ExecRequest, ExecStep, FakeRuntime, Fault, Operation
from podkeeper.testing import build
from podkeeper.testing.virtual_time import Stuck, VirtualClock, simulate

WEB = PodUID("uid-web")
SCRIPT = ANNOTATION_PREFIX + "app"

pod = partial(build.pod, image="nginx")


async def create(runtime: Runtime, what: Pod, attempt: int = 0) -> str:
    """A container, created in the pod's sandbox."""
    sandbox_id = await runtime.run_sandbox(SandboxConfig(pod=what, attempt=0))
    image = await runtime.pull_image("nginx")
    config = ContainerConfig(
        pod=what, container=what.spec.containers[0], attempt=attempt, image=image.id, spec_hash="1"
    )
    return await runtime.create_container(sandbox_id, config)


async def start(runtime: Runtime, what: Pod, attempt: int = 0) -> str:
    """A container, started."""
    container_id = await create(runtime, what, attempt)
    await runtime.start_container(container_id)
    return container_id


async def newest_container(runtime: Runtime, uid: PodUID = WEB) -> ContainerRecord:
    return (await runtime.pod_record(uid)).containers[0]


def seconds(record: ContainerRecord) -> float:
    """How long a container lived."""
    assert record.started_at is not None
    assert record.finished_at is not None
    return (record.finished_at - record.started_at).total_seconds()


# ---- lives ----

LIVES: dict[str, tuple[Behaviour, int, tuple[RecordState, int, str, float | None]]] = {
    "no script: it runs forever":
        (Behaviour(), 0, (RecordState.RUNNING, 0, "", None)),
    "a container succeeds after some seconds":
        (Behaviour(after_seconds=5), 0, (RecordState.EXITED, 0, "Completed", 5.0)),
    "a container fails after some seconds":
        (Behaviour(after_seconds=5, exit_code=1), 0, (RecordState.EXITED, 1, "Error", 5.0)),
    "a container is OOM-killed":
        (Behaviour(after_seconds=5, exit_code=137, reason="OOMKilled"), 0,
         (RecordState.EXITED, 137, "OOMKilled", 5.0)),
    "a container exits at once":
        (Behaviour(after_seconds=0), 0, (RecordState.EXITED, 0, "Completed", 0.0)),
    "the second of two failing attempts fails":
        (Behaviour(after_seconds=1, exit_code=2, crashes=2), 1, (RecordState.EXITED, 2, "Error", 1.0)),
    "the attempt after two failing attempts runs":
        (Behaviour(after_seconds=1, exit_code=2, crashes=2), 2, (RecordState.RUNNING, 0, "", None)),
}  # fmt: skip


@pytest.mark.parametrize("behaviour, attempt, expected", LIVES.values(), ids=LIVES.keys())
def test_the_scripted_lifetime_of_a_container(
    behaviour: Behaviour, attempt: int, expected: tuple[RecordState, int, str, float | None]
) -> None:
    async def scenario() -> tuple[RecordState, int, str, float | None]:
        runtime = FakeRuntime(VirtualClock(), behaviours={("web", "app"): behaviour})
        await start(runtime, pod(), attempt)
        await asyncio.sleep(3600)
        record = await newest_container(runtime)
        return record.state, record.exit_code, record.reason, None if record.finished_at is None else seconds(record)

    assert simulate(scenario())[0] == expected


STOPS: dict[str, tuple[Behaviour, float, tuple[float, int]]] = {
    "a container exits at once after SIGTERM": (Behaviour(), 30, (0.0, 0)),
    "a container exits some time after SIGTERM": (Behaviour(term_seconds=4, term_exit_code=143), 30, (4.0, 143)),
    "a container that needs longer than the grace period is killed": (
        Behaviour(term_seconds=4, term_exit_code=143), 3, (3.0, 137)),
    "a container that ignores SIGTERM is killed": (Behaviour(term_seconds=None), 30, (30.0, 137)),
    "a container exits by itself before it would exit because of SIGTERM": (
        Behaviour(after_seconds=2, exit_code=9, term_seconds=4), 30, (1.0, 9)),
    "a container exits by itself when it would exit because of SIGTERM": (
        Behaviour(after_seconds=5, exit_code=9, term_seconds=4, term_exit_code=7), 30, (4.0, 9)),
    "without a grace period, a container gets no SIGTERM": (Behaviour(), 0, (0.0, 137)),
}  # fmt: skip


@pytest.mark.parametrize("behaviour, grace_seconds, expected", STOPS.values(), ids=STOPS.keys())
def test_the_scripted_exit_of_a_container(
    behaviour: Behaviour, grace_seconds: float, expected: tuple[float, int]
) -> None:
    async def scenario() -> tuple[float, int]:
        clock = VirtualClock()
        runtime = FakeRuntime(clock, default=behaviour)
        container_id = await start(runtime, pod())
        await asyncio.sleep(1)
        begun = clock.monotonic()
        await runtime.stop_container(container_id, grace_seconds)
        return clock.monotonic() - begun, (await newest_container(runtime)).exit_code

    assert simulate(scenario())[0] == expected


def test_a_second_stop_does_not_restart_the_grace_period() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), default=Behaviour(term_seconds=10, term_exit_code=7))
        container_id = await start(runtime, pod())
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.stop_container(container_id, 60))
            await asyncio.sleep(6)
            group.create_task(runtime.stop_container(container_id, 60))
        assert (await newest_container(runtime)).exit_code == 7

    assert simulate(scenario())[1] == 10.0


def test_a_container_exits_after_sigterm_although_the_stop_was_cancelled() -> None:
    async def scenario() -> ContainerRecord:
        runtime = FakeRuntime(VirtualClock(), default=Behaviour(term_seconds=10))
        container_id = await start(runtime, pod())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await runtime.stop_container(container_id, 60)
        assert (await newest_container(runtime)).state is RecordState.RUNNING
        await asyncio.sleep(20)
        return await newest_container(runtime)

    assert seconds(simulate(scenario())[0]) == 10.0


def test_annotations_script_containers() -> None:
    async def scenario() -> ContainerRecord:
        runtime = FakeRuntime(VirtualClock())
        await start(runtime, pod(annotations={SCRIPT: '{"exit_code": 1, "after_seconds": 5, "message": "oh"}'}))
        await asyncio.sleep(6)
        return await newest_container(runtime)

    record = simulate(scenario())[0]
    assert (record.exit_code, record.message, seconds(record)) == (1, "oh", 5.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"exit_code": "x"}', '{"exitcode": 1}', '{"after_seconds": -1}'])
def test_an_invalid_annotation_is_refused_by_name(text: str) -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeRefused, match="io/app of pod default/web"):
            await create(FakeRuntime(VirtualClock()), pod(annotations={SCRIPT: text}))

    simulate(scenario())


def test_the_most_specific_script_applies() -> None:
    async def scenario() -> list[int]:
        runtime = FakeRuntime(VirtualClock(), default=Behaviour(after_seconds=0, exit_code=1))
        codes: list[int] = []

        async def code_of(what: Pod) -> int:
            await start(runtime, what, attempt=len(codes))
            await asyncio.sleep(1)
            return (await newest_container(runtime)).exit_code

        codes.append(await code_of(pod()))
        annotated = pod(annotations={SCRIPT: '{"after_seconds": 0, "exit_code": 2}'})
        codes.append(await code_of(annotated))
        for key, code in ((("*", "app"), 3), (("web", "*"), 4), (("web", "app"), 5), (("uid-web", "app"), 6)):
            runtime.behave(*key, Behaviour(after_seconds=0, exit_code=code))
            codes.append(await code_of(annotated))
        return codes

    assert simulate(scenario())[0] == [1, 2, 3, 4, 5, 6]


def test_a_failed_start_leaves_a_container_with_the_reason() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), default=Behaviour(start_error="no such file: /run.sh", start_errors=1))
        with pytest.raises(RuntimeRefused, match=r"/run\.sh"):
            await start(runtime, pod())
        record = await newest_container(runtime)
        assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 128, "StartError")
        await start(runtime, pod(), attempt=1)
        assert (await newest_container(runtime)).state is RecordState.RUNNING

    simulate(scenario())


# ---- commands ----


def test_results_of_commands_depend_on_the_age_of_the_container() -> None:
    async def scenario() -> list[CommandEnd]:
        steps = (
            ExecStep(exit_code=1),
            ExecStep(from_seconds=10, output="ok"),
            ExecStep(from_seconds=20, takes_seconds=9),
        )
        runtime = FakeRuntime(VirtualClock(), default=Behaviour(exec=steps))
        container_id = await start(runtime, pod())
        ends = []
        for _ in range(3):
            ends.append(await runtime.exec_sync(container_id, ["probe"], 1))
            await asyncio.sleep(10)
        return ends

    first, second, third = simulate(scenario())[0]
    assert (first, second) == (CommandExited(1), CommandExited(0, b"ok"))
    assert isinstance(third, TimedOut)


def test_a_script_answers_only_scripted_commands() -> None:
    requests: list[ExecRequest] = []

    def script(request: ExecRequest) -> CommandEnd | None:
        requests.append(request)
        return CommandExited(9) if request.command == ("mine",) else None

    async def scenario() -> tuple[CommandEnd, CommandEnd]:
        runtime = FakeRuntime(VirtualClock())
        runtime.exec_script = script
        container_id = await start(runtime, pod())
        await asyncio.sleep(3)
        return await runtime.exec_sync(container_id, ["mine"], 1), await runtime.exec_sync(container_id, ["other"], 1)

    assert simulate(scenario())[0] == (CommandExited(9), CommandExited(0))
    assert requests[0] == ExecRequest(WEB, "web", "app", 0, ("mine",), 3.0)


def test_a_command_ends_with_its_container() -> None:
    async def scenario() -> CommandEnd:
        life = Behaviour(after_seconds=5, exec=(ExecStep(takes_seconds=60),))
        runtime = FakeRuntime(VirtualClock(), default=life)
        return await runtime.exec_sync(await start(runtime, pod()), ["probe"], 0)

    end, took = simulate(scenario())
    assert isinstance(end, NotRun)
    assert took == 5.0


# ---- trouble ----


def test_operations_have_the_configured_delays() -> None:
    async def scenario() -> list[tuple[str, float, float | None]]:
        delays = {Operation.RUN_SANDBOX.value: 0.5, "pull_image": 2.0, "start_container": 0.25}
        runtime = FakeRuntime(VirtualClock(), delays=delays)
        await start(runtime, pod())
        return [(call.operation, call.begun, call.ended) for call in runtime.call_log]

    assert simulate(scenario())[0] == [
        ("run_sandbox", 0.0, 0.5),
        ("pull_image", 0.5, 2.5),
        ("create_container", 2.5, 2.5),
        ("start_container", 2.5, 2.75),
    ]


def test_a_fault_applies_to_its_operation_and_pod_n_times() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        runtime.faults.fail("start_container", WEB, times=2)
        await start(runtime, pod("other"))
        container_id = await create(runtime, pod())
        for _ in range(2):
            with pytest.raises(RuntimeRefused):
                await runtime.start_container(container_id)
            assert (await newest_container(runtime)).state is RecordState.CREATED
        await runtime.start_container(container_id)
        assert (await newest_container(runtime)).state is RecordState.RUNNING
        assert [call.error for call in runtime.call_log if call.about == WEB and "start" in call.operation] == [
            "RuntimeRefused",
            "RuntimeRefused",
            "",
        ]

    simulate(scenario())


def test_a_call_that_times_out_may_have_taken_effect() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        container_id = await create(runtime, pod())
        runtime.faults.lose_answer("start_container", seconds=120)
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(_outcome(runtime.start_container(container_id)))
            await asyncio.sleep(1)
            assert (await newest_container(runtime)).state is RecordState.RUNNING
        assert isinstance(starting.result(), CallTimedOut)

    assert simulate(scenario())[1] == 120.0


def test_a_hung_call_blocks_no_other_and_continues_when_released() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        runtime.faults.hang("run_sandbox", WEB)
        async with asyncio.TaskGroup() as group:
            hung = group.create_task(start(runtime, pod()))
            for number in range(100):
                await start(runtime, pod(f"other{number}"))
            await asyncio.sleep(3600)
            assert not hung.done()
            assert runtime.faults.hung_calls == 1
            assert len(runtime.live_containers()) == 100
            runtime.faults.clear()
        assert len(runtime.live_containers()) == 101

    assert simulate(scenario())[1] == 3600.0


def test_a_policy_injects_faults() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        runtime.faults.add_policy(
            lambda operation, about: Fault(error=CallTimedOut) if (operation, about) == ("pod_record", WEB) else None
        )
        await start(runtime, pod())
        with pytest.raises(CallTimedOut):
            await runtime.pod_record(WEB)
        assert len(await runtime.list_pods()) == 1

    simulate(scenario())


def test_the_calls_of_one_fault_can_be_released() -> None:
    async def scenario() -> dict[str, float]:
        clock = VirtualClock()
        runtime = FakeRuntime(clock)
        hung = runtime.faults.hang("pod_record", "uid-hung", times=None)
        slow = runtime.faults.hang("pod_record", "uid-slow", times=None, seconds=100)
        runtime.faults.hang("pod_record", "uid-other", times=None)
        ended: dict[str, float] = {}

        async def inspect(name: str) -> None:
            await runtime.pod_record(PodUID(f"uid-{name}"))
            ended[name] = clock.monotonic()

        async with asyncio.TaskGroup() as group:
            for name in ("hung", "slow", "other"):
                group.create_task(inspect(name))
            await asyncio.sleep(10)
            runtime.faults.release(hung)
            assert runtime.faults.hung_calls == 2  # until the loop comes round to it
            await asyncio.sleep(10)
            assert runtime.faults.hung_calls == 1
            runtime.faults.release(slow)
            await asyncio.sleep(10)
            runtime.faults.clear()
        return ended

    assert simulate(scenario())[0] == {"hung": 10, "slow": 20, "other": 30}


def test_the_first_policy_with_a_fault_decides() -> None:
    def unlucky(operation: str, about: str) -> Fault | None:
        return Fault(error=RuntimeUnavailable) if operation == "pod_record" else None

    def worse(operation: str, about: str) -> Fault | None:
        return Fault(error=CallTimedOut)

    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        runtime.faults.add_policy(unlucky)
        runtime.faults.add_policy(worse)
        assert runtime.faults.policies == (unlucky, worse)
        with pytest.raises(RuntimeUnavailable):
            await runtime.pod_record(WEB)
        with pytest.raises(CallTimedOut):
            await runtime.list_pods()
        runtime.faults.remove_policy(unlucky)
        with pytest.raises(CallTimedOut):
            await runtime.pod_record(WEB)
        runtime.faults.remove_policy(worse)
        assert await runtime.list_pods() == ()

    simulate(scenario())


def test_calls_fail_while_the_runtime_is_down_and_containers_keep_running() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), default=Behaviour(after_seconds=10))
        container_id = await start(runtime, pod())
        stream = runtime.events()
        runtime.go_down()
        calls: list[Coroutine[Any, Any, object]] = [
            runtime.run_sandbox(SandboxConfig(pod=pod("new"), attempt=0)),
            runtime.stop_container(container_id, 1),
            runtime.list_pods(),
            runtime.health(),
            runtime.image("nginx"),
            runtime.exec_sync(container_id, ["probe"], 1),
            anext(runtime.events()),
            anext(stream),
        ]
        for call in calls:
            with pytest.raises(RuntimeUnavailable):
                await call
        assert len(runtime.live_containers()) == 1
        await asyncio.sleep(10)
        runtime.come_up()
        assert (await newest_container(runtime)).state is RecordState.EXITED
        assert (await runtime.health()).runtime_ready

    simulate(scenario())


def test_a_running_call_has_no_effect_after_the_runtime_goes_down() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), delays={"run_sandbox": 10})
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_outcome(runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))))
            await asyncio.sleep(1)
            runtime.go_down()
        assert isinstance(running.result(), RuntimeUnavailable)
        runtime.come_up()
        assert await runtime.list_pods() == ()

    simulate(scenario())


def test_a_running_call_has_no_effect_after_a_reboot() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), delays={"run_sandbox": 10})
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_outcome(runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))))
            await asyncio.sleep(1)
            runtime.reboot()
        assert isinstance(running.result(), RuntimeUnavailable)
        assert await runtime.list_pods() == ()
        await runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))
        assert len(await runtime.list_pods()) == 1

    simulate(scenario())


async def _outcome(call: Coroutine[Any, Any, object]) -> object:
    try:
        return await call
    except TryLater as error:
        return error


# ---- news ----


def test_events_can_be_dropped_repeated_delayed_and_reordered() -> None:
    def unreliable(event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
        match event.type:
            case RuntimeEventType.CREATED:
                return []
            case RuntimeEventType.STARTED if event.container_id.startswith("c"):
                return [(30.0, event)]
            case RuntimeEventType.STOPPED:
                return [(0.0, event), (0.0, event)]
            case _:
                return [(0.0, event)]

    async def scenario() -> list[str]:
        clock = VirtualClock()
        runtime = FakeRuntime(clock)
        stream = runtime.events()
        runtime.filter_events(unreliable)
        container_id = await start(runtime, pod())
        await runtime.stop_container(container_id, 1)
        seen = []
        for _ in range(4):
            event = await anext(stream)
            seen.append(f"{clock.monotonic():g}: {event.container_id[0]} {event.type}")
        return seen

    assert simulate(scenario())[0] == ["0: s started", "0: c stopped", "0: c stopped", "30: c started"]


def test_event_filters_form_a_chain() -> None:
    async def scenario() -> list[float]:
        clock = VirtualClock()
        runtime = FakeRuntime(clock)
        stream = runtime.events()

        def late(event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
            return [(5.0, event)]

        def twice(event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
            return [(0.0, event), (1.0, event)]

        runtime.add_event_filter(late)
        runtime.add_event_filter(twice)
        await runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))
        runtime.remove_event_filter(late)
        assert runtime.event_filters == (twice,)
        runtime.filter_events(None)
        assert not runtime.event_filters
        received = []
        for _ in range(4):  # created and started
            await anext(stream)
            received.append(clock.monotonic())
        return received

    assert simulate(scenario())[0] == [5, 5, 6, 6]


def test_a_stream_can_end_and_can_break() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        ended, broken = runtime.events(), None
        await start(runtime, pod())
        runtime.end_events()
        assert len([event async for event in ended]) == 4
        broken = runtime.events()
        await start(runtime, pod("other"))
        runtime.break_events()
        with pytest.raises(RuntimeUnavailable):
            await anext(broken)
        fresh = runtime.events()
        await start(runtime, pod("third"))
        assert (await anext(fresh)).uid == "uid-third"

    simulate(scenario())


def test_the_stream_of_a_slow_consumer_breaks() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), event_limit=3)
        slow, quick = runtime.events(), runtime.events()
        for number in range(3):
            await runtime.run_sandbox(SandboxConfig(pod=pod(f"p{number}"), attempt=0))
            assert [(await anext(quick)).type for _ in range(2)] == ["created", "started"]
        with pytest.raises(RuntimeUnavailable):
            await anext(slow)

    simulate(scenario())


def test_a_closed_stream_receives_nothing() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        stream = runtime.events()
        await stream.aclose()
        await start(runtime, pod())
        assert [event async for event in stream] == []

    simulate(scenario())


# ---- what there is ----


def test_a_record_is_the_same_value_until_something_changes() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        await start(runtime, pod())
        container_id = await start(runtime, pod("other"))
        before = {record.uid: record for record in await runtime.list_pods()}
        await runtime.stop_container(container_id, 1)
        after = {record.uid: record for record in await runtime.list_pods()}
        assert before[WEB] is after[WEB]
        assert before["uid-other"] is not after["uid-other"]
        assert await runtime.pod_record(WEB) is after[WEB]

    simulate(scenario())


def test_a_ready_sandbox_has_an_address_unless_it_uses_the_host_network() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        sandbox_id = await runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))
        await runtime.run_sandbox(SandboxConfig(pod=pod("other"), attempt=0))
        record = await runtime.pod_record(WEB)
        assert record.ips
        assert record.ips != (await runtime.pod_record(PodUID("uid-other"))).ips
        await runtime.stop_sandbox(sandbox_id)
        assert (await runtime.pod_record(WEB)).ips == ()
        await runtime.run_sandbox(SandboxConfig(pod=pod("host", host_network=True), attempt=0))
        record = await runtime.pod_record(PodUID("uid-host"))
        assert (record.ips, record.sandboxes[0].network) == ((), NetworkMode.NODE)

    simulate(scenario())


def test_an_image_has_its_name_with_and_without_the_tag_latest() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), images=["nginx", "registry:5000/app@sha256:" + "0" * 64])
        image = await runtime.image("nginx:latest")
        assert image is not None
        assert image == await runtime.image("nginx") == await runtime.image(image.digests[0])
        assert await runtime.image("nginx:2") is None
        assert len(await runtime.list_images()) == 2
        await runtime.remove_image(image.id)
        assert await runtime.image("nginx") is None

    simulate(scenario())


def test_a_private_image_needs_a_password() -> None:
    def config(password: str) -> str:
        return json.dumps({"auths": {"reg.test": {"username": "me", "password": password}}})

    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        runtime.private_images["reg.test/app:v1"] = frozenset({"right"})
        for secrets in ([], [config("wrong")]):
            with pytest.raises(ImagePullFailed, match="unauthorized"):
                await runtime.pull_image("reg.test/app:v1", secrets)
        assert (await runtime.pull_image("reg.test/app:v1", [config("right")])).tags == ("reg.test/app:v1",)

    simulate(scenario())


def test_usage_of_the_image_disk() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), images=["one", "two"])
        assert await runtime.image_usage() is None
        runtime.image_disk_bytes, runtime.other_disk_bytes = 100 * 2**20, 50 * 2**20
        usage = await runtime.image_usage()
        assert usage is not None
        assert (usage.used_bytes, usage.available_bytes) == (20 * 2**20, 30 * 2**20)
        runtime.other_disk_bytes = 2**40
        full = await runtime.image_usage()
        assert full is not None
        assert full.available_bytes == 0

    simulate(scenario())


def test_a_container_needs_a_present_image() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        sandbox_id = await runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))
        config = ContainerConfig(
            pod=pod(), container=Container(name="app", image="nginx"), attempt=0, image="nginx", spec_hash="1"
        )
        with pytest.raises(RuntimeRefused, match="image nginx is not on the node"):
            await runtime.create_container(sandbox_id, config)

    simulate(scenario())


# ---- what tests can do to it, and what it notes ----


def test_containers_and_sandboxes_can_be_killed() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        await start(runtime, pod())
        runtime.end_container(WEB, "app", 137, "OOMKilled")
        record = await newest_container(runtime)
        assert (record.exit_code, record.reason) == (137, "OOMKilled")
        await start(runtime, pod("other"))
        runtime.kill_sandbox(PodUID("uid-other"))
        other = await runtime.pod_record(PodUID("uid-other"))
        assert (other.sandboxes[0].ready, other.containers[0].exit_code) == (False, 137)

    simulate(scenario())


def test_after_a_reboot_nothing_runs_and_all_records_remain() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        await start(runtime, pod())
        runtime.reboot()
        record = await runtime.pod_record(WEB)
        assert [it.ready for it in record.sandboxes] == [False]
        assert [(it.state, it.exit_code) for it in record.containers] == [(RecordState.EXITED, 255)]
        assert runtime.live_containers() == []

    simulate(scenario())


def test_violations_of_the_agent_are_recorded() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        await start(runtime, pod())
        assert runtime.violations == []
        await start(runtime, pod(), attempt=1)
        assert runtime.violations == ["web/app runs twice"]
        await runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=7))
        assert runtime.violations[1:] == ["pod web got a second ready sandbox"]

    simulate(scenario())


def test_the_call_log_keeps_the_newest_calls_with_their_arguments() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), call_log_size=2)
        container_id = await start(runtime, pod())
        await runtime.stop_container(container_id, 12)
        assert [(call.operation, call.about, call.subject, call.given) for call in runtime.call_log] == [
            ("start_container", WEB, "app", None),
            ("stop_container", WEB, "app", 12),
        ]

    simulate(scenario())


def test_idle_pods_have_no_tasks_and_set_no_timers() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock())
        for number in range(1000):
            await start(runtime, pod(f"p{number}"))
        assert len(await runtime.list_pods()) == 1000
        assert len(asyncio.all_tasks()) == 1
        await asyncio.Event().wait()

    with pytest.raises(Stuck):  # no timer is set
        simulate(scenario())


ATTEMPTS: dict[str, tuple[Behaviour, int, tuple[int, str, str]]] = {
    "every attempt fails": (Behaviour(exit_code=3, reason="OOMKilled"), 7, (3, "OOMKilled", "")),
    "one of the first attempts fails": (Behaviour(exit_code=3, message="no", failures=2), 1, (3, "", "no")),
    "the attempt after the failures succeeds": (Behaviour(exit_code=3, message="no", failures=2), 2, (0, "", "")),
}  # fmt: skip


@pytest.mark.parametrize("behaviour, attempt, expected", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_exit_of_an_attempt_on_its_own(behaviour: Behaviour, attempt: int, expected: tuple[int, str, str]) -> None:
    assert behaviour.exit_of(attempt) == expected


SCRIPTED_COMMANDS = Behaviour(
    exec=(
        ExecStep(command="ready"),
        ExecStep(command="ready", from_seconds=10, exit_code=1),
        ExecStep(command="pre-stop", exit_code=4, takes_seconds=7),
    )
)
WORDS: dict[str, tuple[float, str, int]] = {
    "a command has its own result": (0, "pre-stop", 4),
    "another command has another result": (9, "ready", 0),
    "a result changes with time": (10, "ready", 1),
    "a command that is not scripted succeeds": (10, "date", 0),
}


@pytest.mark.parametrize("age_seconds, word, exit_code", WORDS.values(), ids=WORDS.keys())
def test_results_are_chosen_by_the_first_word(age_seconds: float, word: str, exit_code: int) -> None:
    async def scenario() -> CommandEnd:
        runtime = FakeRuntime(VirtualClock(), behaviours={("web", "app"): SCRIPTED_COMMANDS})
        container_id = await start(runtime, pod())
        await asyncio.sleep(age_seconds)
        return await runtime.exec_sync(container_id, (word, "-v"), 30)

    assert simulate(scenario())[0] == CommandExited(exit_code)


def test_answers_of_a_sandbox_come_from_its_running_containers() -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), behaviours={("web", "app"): SCRIPTED_COMMANDS})
        await create(runtime, pod())
        sandbox_id = (await runtime.pod_record(WEB)).sandboxes[0].id
        assert runtime.answer_in(sandbox_id, "ready") is None  # nothing runs yet
        await start(runtime, pod(), 1)
        assert runtime.answer_in(sandbox_id, "ready") == ExecStep(command="ready")
        assert runtime.answer_in(sandbox_id, "date") is None
        assert runtime.answer_in("unknown", "ready") is None
        runtime.end_container(WEB, "app", 0)
        assert runtime.answer_in(sandbox_id, "ready") is None

    simulate(scenario())
