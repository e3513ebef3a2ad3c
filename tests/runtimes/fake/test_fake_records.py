"""Records of the fake runtime: calls in the call log, changes in records and events, violations."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from podkeeper.model.errors import (
    AgentError,
    CallTimedOut,
    ImagePullFailed,
    RuntimeRefused,
    RuntimeUnavailable,
)
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.model.runtime import (
    ContainerRecord,
    ImageFsUsage,
    NetworkMode,
    PodRecord,
    RecordState,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.runtimes.fake import Behaviour, ExecRequest, ExecStep, FakeRuntime, Fault, Operation
from podkeeper.runtimes.fake.faults import FakeFaults
from podkeeper.testing import build
from podkeeper.testing.virtual_time import Stuck, VirtualClock, simulate

WEB = PodUID("uid-web")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

pod = partial(build.pod, namespace="shop", image="nginx")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def box(of: Pod, attempt: int = 0) -> SandboxConfig:
    return SandboxConfig(pod=of, attempt=attempt)


def wanted(of: Pod, attempt: int = 0, image: str = "nginx", name: str = "app") -> ContainerConfig:
    container = msgspec.structs.replace(of.spec.containers[0], name=name)
    return ContainerConfig(pod=of, container=container, attempt=attempt, image=image, spec_hash="h")


def play(work: Callable[[FakeRuntime], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        runtime = FakeRuntime(VirtualClock(), images=("nginx",), **options)
        assert at(0) == VirtualClock().now()
        await work(runtime)

    simulate(scenario())


# The call log.


def test_every_call_is_in_the_call_log_with_its_arguments() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web = pod()
        runtime.delays.update(dict.fromkeys(Operation, 1.0))
        sandbox_id = await runtime.run_sandbox(box(web))
        container_id = await runtime.create_container(sandbox_id, wanted(web))
        await runtime.start_container(container_id)
        await runtime.exec_sync(container_id, ["ls", "-l"], 5)
        await runtime.reopen_log(container_id)
        await runtime.pod_record(WEB)
        await runtime.list_pods()
        await runtime.stop_container(container_id, 7)
        await runtime.remove_container(container_id)
        await runtime.stop_sandbox(sandbox_id)
        await runtime.remove_sandbox(sandbox_id)
        await runtime.image("nginx")
        await runtime.pull_image("busybox", ["secret"])
        await runtime.list_images()
        await runtime.remove_image("busybox")
        await runtime.image_usage()
        await runtime.health()
        with pytest.raises(RuntimeRefused):
            await runtime.start_container("gone")
        found = [(each.operation, each.about, each.subject, each.given, each.error) for each in runtime.call_log]
        assert found == [
            ("run_sandbox", WEB, "", box(web), ""),
            ("create_container", WEB, "app", wanted(web), ""),
            ("start_container", WEB, "app", None, ""),
            ("exec_sync", WEB, "app", ("ls", "-l"), ""),
            ("reopen_log", WEB, "app", None, ""),
            ("pod_record", WEB, "", None, ""),
            ("list_pods", "", "", None, ""),
            ("stop_container", WEB, "app", 7, ""),
            ("remove_container", WEB, "app", None, ""),
            ("stop_sandbox", WEB, sandbox_id, None, ""),
            ("remove_sandbox", WEB, sandbox_id, None, ""),
            ("image", "nginx", "nginx", None, ""),
            ("pull_image", "busybox", "busybox", ("secret",), ""),
            ("list_images", "", "", None, ""),
            ("remove_image", "busybox", "busybox", None, ""),
            ("image_usage", "", "", None, ""),
            ("health", "", "", None, ""),
            ("start_container", "", "gone", None, "RuntimeRefused"),
        ]
        assert {each.operation for each in runtime.call_log} == set(Operation)
        times = [(each.begun, each.ended) for each in runtime.call_log]
        assert times == [(float(second), second + 1.0) for second in range(len(found))]

    play(work)


def test_a_running_call_has_no_end_and_the_call_log_keeps_the_newest() -> None:
    async def work(runtime: FakeRuntime) -> None:
        runtime.faults.hang(Operation.HEALTH)
        hanging = asyncio.ensure_future(runtime.health())
        await asyncio.sleep(1)
        assert [(each.ended, each.error) for each in runtime.call_log] == [(None, "")]
        hanging.cancel()
        await asyncio.wait([hanging])
        assert [(each.ended, each.error) for each in runtime.call_log] == [(1.0, "CancelledError")]
        for number in range(3):
            await runtime.image(str(number))
        assert [each.subject for each in runtime.call_log] == ["1", "2"]

    play(work, call_log_size=2)


# Records, news and observers.


def test_every_change_of_a_pod_reaches_the_observer_and_the_consumers() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web, seen = pod(), list[tuple[str, str, str]]()
        runtime.observe_changes(lambda uid, record, event_type: seen.append((uid, record.id, event_type.name)))
        stream = runtime.events()
        assert await runtime.pod_record(WEB) == PodRecord(uid=WEB)
        sandbox_id = await runtime.run_sandbox(box(web, attempt=2))
        await asyncio.sleep(1)
        container_id = await runtime.create_container(sandbox_id, wanted(web, attempt=3))
        await asyncio.sleep(1)
        await runtime.start_container(container_id)
        await runtime.start_container(container_id)
        image = await runtime.image("nginx")
        sandbox = SandboxRecord(
            id="s000001", ready=True, attempt=2, network=NetworkMode.POD, ip="10.0.0.1", created_at=at(0)
        )
        container = ContainerRecord(
            id="c000002",
            name="app",
            state=RecordState.RUNNING,
            image="nginx",
            image_id=image.id if image else "",
            spec_hash="h",
            sandbox_id="s000001",
            restart_count=3,
            created_at=at(1),
            started_at=at(2),
        )
        expected = PodRecord(
            uid=WEB, name="web", namespace="shop", ips=("10.0.0.1",), sandboxes=(sandbox,), containers=(container,)
        )
        assert await runtime.pod_record(WEB) == expected
        assert (*await runtime.list_pods(),) == (expected,)
        assert runtime.live_containers() == [(WEB, container)]
        await asyncio.sleep(1)
        await runtime.stop_sandbox(sandbox_id)
        await runtime.stop_sandbox(sandbox_id)
        await runtime.stop_container(container_id, 5)
        ended = msgspec.structs.replace(
            container, state=RecordState.EXITED, finished_at=at(3), exit_code=137, reason="Error"
        )
        stopped = msgspec.structs.replace(sandbox, ready=False, ip="")
        expected = PodRecord(uid=WEB, name="web", namespace="shop", sandboxes=(stopped,), containers=(ended,))
        assert await runtime.pod_record(WEB) == expected
        assert (*await runtime.list_pods(),) == (expected,)
        await runtime.remove_sandbox(sandbox_id)
        await runtime.remove_sandbox(sandbox_id)
        await runtime.remove_container(container_id)
        await runtime.stop_container(container_id, 5)
        assert await runtime.pod_record(WEB) == PodRecord(uid=WEB)
        assert (*await runtime.list_pods(),) == ()
        assert runtime.live_containers() == []
        assert seen == [
            (WEB, "s000001", "CREATED"),
            (WEB, "s000001", "STARTED"),
            (WEB, "c000002", "CREATED"),
            (WEB, "c000002", "STARTED"),
            (WEB, "c000002", "STOPPED"),
            (WEB, "s000001", "STOPPED"),
            (WEB, "c000002", "DELETED"),
            (WEB, "s000001", "DELETED"),
        ]
        runtime.end_events()
        found = [(event.uid, event.container_id, event.type.name, event.at) async for event in stream]
        times = [at(0), at(0), at(1), at(2), at(3), at(3), at(3), at(3)]
        assert found == [(*each, when) for each, when in zip(seen, times, strict=True)]
        assert (*runtime.violations,) == ()

    play(work)


def test_newest_records_first_and_attempts_are_separate() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web = pod()
        first = await runtime.run_sandbox(box(web, 0))
        assert await runtime.run_sandbox(box(web, 0)) == first
        await runtime.stop_sandbox(first)
        second = await runtime.run_sandbox(box(web, 1))
        made = [await runtime.create_container(second, wanted(web, attempt)) for attempt in (0, 1)]
        record = await runtime.pod_record(WEB)
        assert [each.id for each in record.sandboxes] == [second, first]
        assert [each.id for each in record.containers] == made[::-1]
        again = await runtime.run_sandbox(box(web, 0))
        assert again != first
        assert [each.id for each in (await runtime.pod_record(WEB)).sandboxes] == [again, second]
        assert (*runtime.violations,) == ("pod web got a second ready sandbox",)

    play(work)


def test_a_container_of_the_same_attempt_is_replaced_until_it_has_started() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web = pod()
        sandbox_id = await runtime.run_sandbox(box(web))
        other = await runtime.create_container(sandbox_id, wanted(web, name="other"))
        first = await runtime.create_container(sandbox_id, wanted(web))
        second = await runtime.create_container(sandbox_id, wanted(web))
        assert [each.id for each in (await runtime.pod_record(WEB)).containers] == [second, other]
        await runtime.start_container(second)
        with pytest.raises(RuntimeRefused, match="cannot create container app: attempt 0 has already started"):
            await runtime.create_container(sandbox_id, wanted(web))
        with pytest.raises(RuntimeRefused, match=f"cannot start container {first}: not found"):
            await runtime.start_container(first)
        third = await runtime.create_container(sandbox_id, wanted(web, 1))
        await runtime.start_container(third)
        await runtime.start_container(other)
        assert (*runtime.violations,) == ("web/app runs twice",)

    play(work)


def test_impossible_creates_and_starts_are_refused() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web = pod()
        with pytest.raises(RuntimeRefused, match="cannot create container app: sandbox s is not ready"):
            await runtime.create_container("s", wanted(web))
        sandbox_id = await runtime.run_sandbox(box(web))
        with pytest.raises(RuntimeRefused, match="cannot create container app: image odd is not on the node"):
            await runtime.create_container(sandbox_id, wanted(web, image="odd"))
        created = await runtime.create_container(sandbox_id, wanted(web))
        await runtime.stop_sandbox(sandbox_id)
        assert (await runtime.pod_record(WEB)).containers[0].state is RecordState.CREATED
        with pytest.raises(RuntimeRefused, match="cannot start container app: its sandbox is not ready"):
            await runtime.start_container(created)
        with pytest.raises(RuntimeRefused, match=f"cannot create container app: sandbox {sandbox_id} is not ready"):
            await runtime.create_container(sandbox_id, wanted(web))
        with pytest.raises(RuntimeRefused, match="cannot reopen the log of container app: it is not running"):
            await runtime.reopen_log(created)
        with pytest.raises(RuntimeRefused, match="cannot reopen the log of container gone: it is not running"):
            await runtime.reopen_log("gone")

    play(work)


def test_addresses_of_sandboxes() -> None:
    async def work(runtime: FakeRuntime) -> None:
        await runtime.run_sandbox(box(pod("node", host_network=True)))
        for number in range(255):
            await runtime.run_sandbox(box(pod(f"p{number}")))
        records = {record.name: record for record in await runtime.list_pods()}
        assert records["node"].ips == ()
        assert (records["node"].sandboxes[0].network, records["node"].sandboxes[0].ip) == (NetworkMode.NODE, "")
        assert [records[name].ips for name in ("p0", "p253", "p254")] == [
            ("10.0.0.2",),
            ("10.0.0.255",),
            ("10.0.1.0",),
        ]

    play(work)


def test_end_container_and_kill_sandbox() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web = pod()
        sandbox_id = await runtime.run_sandbox(box(web))
        for name in ("app", "side", "idle"):
            container_id = await runtime.create_container(sandbox_id, wanted(web, name=name))
            if name != "idle":
                await runtime.start_container(container_id)
        runtime.end_container(WEB, "app", 3, "OOMKilled")
        runtime.end_container(WEB, "app", 4)
        runtime.end_container(WEB, "idle", 4)
        runtime.end_container(PodUID("gone"), "app", 4)
        runtime.kill_sandbox(PodUID("gone"))
        found = {
            each.name: (each.state.name, each.exit_code, each.reason)
            for each in (await runtime.pod_record(WEB)).containers
        }
        assert found == {
            "app": ("EXITED", 3, "OOMKilled"),
            "side": ("RUNNING", 0, ""),
            "idle": ("CREATED", 0, ""),
        }
        runtime.kill_sandbox(WEB)
        record = await runtime.pod_record(WEB)
        assert (record.ips, record.sandboxes[0].ready) == ((), False)
        found = {each.name: (each.state.name, each.exit_code, each.reason) for each in record.containers}
        assert found["side"] == ("EXITED", 137, "Error")
        assert found["idle"] == ("CREATED", 0, "")

    play(work)


def test_a_reboot_ends_only_running_containers_and_sandboxes() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web = pod()
        sandbox_id = await runtime.run_sandbox(box(web))
        for name, starts in (("app", True), ("idle", False)):
            container_id = await runtime.create_container(sandbox_id, wanted(web, name=name))
            if starts:
                await runtime.start_container(container_id)
        runtime.reboot()
        record = await runtime.pod_record(WEB)
        assert [(each.name, each.state.name, each.exit_code, each.reason) for each in record.containers] == [
            ("idle", "CREATED", 0, ""),
            ("app", "EXITED", 255, "Unknown"),
        ]
        assert [each.ready for each in record.sandboxes] == [False]

    play(work)


# Commands.


def test_commands_end_after_their_duration_or_timeout() -> None:
    async def work(runtime: FakeRuntime) -> None:
        web, loop = pod(), asyncio.get_running_loop()
        steps = (ExecStep(takes_seconds=3, exit_code=4, output="done"), ExecStep(command="ls", output="files"))
        runtime.behave("web", "app", Behaviour(exec=steps))
        sandbox_id = await runtime.run_sandbox(box(web))
        container_id = await runtime.create_container(sandbox_id, wanted(web, attempt=1))
        not_running = NotRun("cannot run sh: container app is not running")
        assert await runtime.exec_sync(container_id, ["sh", "-c"], 5) == not_running
        assert await runtime.exec_sync("gone", ["sh"], 5) == NotRun("cannot run sh: container gone is not running")
        await runtime.start_container(container_id)
        await asyncio.sleep(1)
        found: list[tuple[CommandEnd, float]] = []
        for timeout in (0, 2, 3, 4):
            begun = loop.time()
            found.append((await runtime.exec_sync(container_id, ["sh", "-c"], timeout), loop.time() - begun))
        done = CommandExited(4, b"done")
        assert found == [(done, 3.0), (TimedOut("command sh did not end within 2 s"), 2.0), (done, 3.0), (done, 3.0)]
        requests: list[ExecRequest] = []

        def script(request: ExecRequest) -> CommandEnd | None:
            requests.append(request)
            return CommandExited(9, b"") if "-x" in request.command else None

        runtime.exec_script = script
        age = loop.time()
        assert await runtime.exec_sync(container_id, ["ls", "-x"], 5) == CommandExited(9, b"")
        await runtime.exec_sync(container_id, ["ls"], 5)
        assert requests == [
            ExecRequest(WEB, "web", "app", 1, ("ls", "-x"), age),
            ExecRequest(WEB, "web", "app", 1, ("ls",), age),
        ]
        ending = asyncio.ensure_future(runtime.exec_sync(container_id, ["sh"], 0))
        await asyncio.sleep(1)
        runtime.end_container(WEB, "app", 0)
        assert await ending == NotRun("cannot get the exit status of sh: container app exited")

    play(work)


def test_scripts_are_found_by_uid_name_and_star() -> None:
    async def work(runtime: FakeRuntime) -> None:
        runtime.behave("uid-web", "app", Behaviour(start_error="by uid"))
        runtime.behave("web", "app", Behaviour(start_error="by name"))
        runtime.behave("web", "*", Behaviour(start_error="any of the pod"))
        runtime.behave("*", "app", Behaviour(start_error="any pod"))
        errors = []
        for name, container in (("web", "app"), ("web", "side"), ("db", "app"), ("db", "side")):
            of = pod(name)
            sandbox_id = await runtime.run_sandbox(box(of))
            container_id = await runtime.create_container(sandbox_id, wanted(of, name=container))
            with pytest.raises(RuntimeRefused) as raised:
                await runtime.start_container(container_id)
            errors.append(str(raised.value).partition(": ")[2])
            (record,) = (await runtime.pod_record(PodUID(f"uid-{name}"))).containers[:1]
            assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 128, "StartError")
            assert record.message == errors[-1]
        assert errors == ["by uid", "any of the pod", "any pod", "by default"]

    play(work, default=Behaviour(start_error="by default"))


# Images.


def test_images_have_one_record_under_all_their_names() -> None:
    async def work(runtime: FakeRuntime) -> None:
        assert (await runtime.list_images())[0].tags == ("nginx:latest",)
        await runtime.remove_image("nginx")
        pulled = await runtime.pull_image("registry:5000/web")
        assert (pulled.tags, pulled.size_bytes) == (("registry:5000/web:latest",), 10 * 2**20)
        assert pulled.digests == (f"registry:5000/web@{pulled.id}",)
        assert pulled.id.startswith("sha256:")
        names = ["registry:5000/web", "registry:5000/web:latest", pulled.id, pulled.digests[0]]
        assert [await runtime.image(name) for name in names] == [pulled] * 4
        assert await runtime.image("registry:5000/web:1") is None
        assert await runtime.pull_image("registry:5000/web:latest") == pulled
        by_digest = await runtime.pull_image("db@sha256:77")
        assert (by_digest.id, by_digest.tags, by_digest.digests) == ("sha256:77", (), ("db@sha256:77",))
        assert (by_digest.size_bytes, (*await runtime.list_images(),)) == (10 * 2**20, (pulled, by_digest))
        assert await runtime.image_usage() is None
        runtime.image_disk_bytes, runtime.other_disk_bytes = 50 * 2**20, 5 * 2**20
        usage = ImageFsUsage(
            mountpoint="/images",
            used_bytes=20 * 2**20,
            capacity_bytes=50 * 2**20,
            available_bytes=25 * 2**20,
        )
        assert await runtime.image_usage() == usage
        runtime.other_disk_bytes = 31 * 2**20
        found = await runtime.image_usage()
        assert found is not None
        assert found.available_bytes == 0
        await runtime.remove_image(pulled.id)
        await runtime.remove_image("gone")
        assert [await runtime.image(name) for name in names] == [None] * 4
        assert (*await runtime.list_images(),) == (by_digest,)
        runtime.missing_images.add("odd")
        with pytest.raises(ImagePullFailed, match="cannot pull image odd: not found"):
            await runtime.pull_image("odd")
        runtime.private_images["own"] = frozenset({"key"})
        with pytest.raises(ImagePullFailed, match="cannot pull image own: unauthorized"):
            await runtime.pull_image("own")

    play(work)


# Trouble.


def test_errors_of_a_runtime_that_is_down_give_the_reason() -> None:
    async def work(runtime: FakeRuntime) -> None:
        stream = runtime.events()
        runtime.go_down("out of order")
        with pytest.raises(RuntimeUnavailable, match="cannot health: out of order"):
            await runtime.health()
        with pytest.raises(RuntimeUnavailable, match="cannot image nginx: out of order"):
            await runtime.image("nginx")
        with pytest.raises(RuntimeUnavailable, match="cannot pod_record uid-web: out of order"):
            await runtime.pod_record(WEB)
        for each in (stream, runtime.events()):
            with pytest.raises(RuntimeUnavailable, match="cannot send events: out of order"):
                await anext(each)
        runtime.come_up()
        assert await runtime.health() == RuntimeHealth() == runtime.condition
        runtime.go_down()
        with pytest.raises(RuntimeUnavailable, match="the runtime is down"):
            await runtime.health()

    play(work)


def test_a_running_call_fails_at_a_reboot() -> None:
    async def work(runtime: FakeRuntime) -> None:
        runtime.delays[Operation.HEALTH] = 5
        calling = asyncio.ensure_future(runtime.health())
        await asyncio.sleep(1)
        runtime.reboot()
        with pytest.raises(RuntimeUnavailable, match="cannot health: the machine has rebooted"):
            await calling
        assert await runtime.health() == RuntimeHealth()

    play(work)


def test_event_filters_are_set_added_and_removed() -> None:
    async def work(runtime: FakeRuntime) -> None:
        def lose(event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
            return []

        def keep(event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
            return [(0.0, event)]

        runtime.add_event_filter(keep)
        runtime.add_event_filter(lose)
        assert [*runtime.event_filters] == [keep, lose]
        runtime.remove_event_filter(lose)
        runtime.remove_event_filter(lose)
        assert [*runtime.event_filters] == [keep]
        runtime.filter_events(lose)
        assert [*runtime.event_filters] == [lose]
        runtime.filter_events(None)
        assert [*runtime.event_filters] == []

    play(work)


class Refused(AgentError):
    """An error of a test's own."""


async def ended(faults: FakeFaults, operation: str = "op", about: str = "x") -> tuple[str, float]:
    """What a fault does to one call: its error, and how long it took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    fault = faults.take(operation, about)
    if fault is None:
        return "none", 0.0
    await faults.suffer(fault)
    return (fault.error.__name__ if fault.error else "") + ("!" if fault.takes_effect else ""), loop.time() - begun


def test_faults_have_their_defaults() -> None:
    faults = FakeFaults()
    found = [faults.fail(), faults.hang(), faults.lose_answer()]
    assert [
        (each.operation, each.about, each.times, each.delay_seconds, each.error, each.takes_effect) for each in found
    ] == [
        (None, None, 1, 0.0, RuntimeRefused, False),
        (None, None, 1, float("inf"), None, False),
        (None, None, 1, 0.0, CallTimedOut, True),
    ]
    other = FakeFaults(failure=Refused, lost_answer=ImagePullFailed)
    assert (other.fail().error, other.lose_answer().error) == (Refused, ImagePullFailed)
    named = [
        other.fail("op", "x", times=2, error=CallTimedOut),
        other.hang("op", "x", times=None, seconds=3),
        other.lose_answer("op", "x", times=3, seconds=4, error=Refused),
        Fault(),
    ]
    assert [
        (each.operation, each.about, each.times, each.delay_seconds, each.error, each.takes_effect) for each in named
    ] == [
        ("op", "x", 2, 0.0, CallTimedOut, False),
        ("op", "x", None, 3, None, False),
        ("op", "x", 3, 4, Refused, True),
        (None, None, 1, 0.0, None, False),
    ]


def test_the_oldest_matching_fault_is_used_n_times() -> None:
    async def scenario() -> None:
        faults = FakeFaults()
        faults.fail("other")
        faults.fail("op", "else")
        faults.hang("op", times=2, seconds=3)
        always = faults.lose_answer(about="x", times=None, seconds=1)
        assert [await ended(faults) for _ in range(4)] == [("", 3.0), ("", 3.0), *[("CallTimedOut!", 1.0)] * 2]
        assert await ended(faults, "op", "else") == ("RuntimeRefused", 0.0)
        assert await ended(faults, "op", "else") == ("none", 0.0)
        faults.remove(always)
        faults.remove(always)
        assert await ended(faults) == ("none", 0.0)
        faults.add_policy(lambda operation, about: Fault(delay_seconds=5) if operation == "slow" else None)
        second = faults.policies[0]
        faults.add_policy(lambda operation, about: Fault(delay_seconds=6))
        assert [await ended(faults, name) for name in ("slow", "op")] == [("", 5.0), ("", 6.0)]
        faults.remove_policy(second)
        faults.remove_policy(second)
        assert (await ended(faults, "slow"), len(faults.policies)) == (("", 6.0), 1)

    simulate(scenario())


def test_hung_calls_are_counted_and_released() -> None:
    async def scenario() -> None:
        faults = FakeFaults()
        first, second = faults.hang("a", times=None), faults.hang("b", times=None)
        faults.hang("slow", seconds=100)
        calls = [asyncio.ensure_future(ended(faults, name)) for name in ("a", "a", "b", "slow")]
        await asyncio.sleep(1)
        assert faults.hung_calls == 3
        faults.release(first)
        await asyncio.sleep(0)
        assert faults.hung_calls == 1
        assert [await call for call in calls[:2]] == [("", 1.0)] * 2
        await asyncio.sleep(1)
        faults.clear()
        assert await calls[2] == ("", 2.0)
        assert (faults.take("b", "x"), second.times) == (None, None)
        assert await calls[3] == ("", 100.0)
        assert faults.hung_calls == 0

    simulate(scenario())


def test_a_call_that_hangs_sets_no_timer() -> None:
    async def scenario() -> None:
        faults = FakeFaults()
        faults.hang()
        await ended(faults)

    with pytest.raises(Stuck):
        simulate(scenario())
