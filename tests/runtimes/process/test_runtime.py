"""The process runtime beyond its contract: logs, kills, events and users."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from podkeeper.host.cgroups import NoCgroups, open_cgroups, own_root
from podkeeper.model.errors import BadInput, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import Container, Lifecycle, Pod, ResourceRequirements, SecurityContext
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandExited
from podkeeper.model.runtime import NetworkMode, RecordState
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType, SandboxConfig
from podkeeper.runtimes.events import EventHub
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.harness import (
    HOST_IPS,
    RuntimeHarness,
    contents,
    eventually,
    in_runtime,
    is_alive,
    opened,
    pid_of,
    running,
    temporary_root,
)

# ---- output ----


def test_output_is_logged_in_the_cri_format(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path / "logs"))
        container = await harness.start("sh", "-c", "echo out; echo err >&2; printf half")
        await harness.exited(container)
        assert sorted(contents(harness.log())) == [
            (b"stderr", b"F", b"err"),
            (b"stdout", b"F", b"out"),
            (b"stdout", b"P", b"half"),
        ]

    in_runtime(act)


def test_reopen_log_continues_in_a_new_file(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        container = await harness.start("sh", "-c", "echo old; read line; echo new", stdin=True)
        path = tmp_path / "c" / "0.log"
        await eventually(lambda: path.exists() and b"old" in path.read_bytes(), "the first line is there")
        path.rename(tmp_path / "c" / "0.log.rotated")
        await runtime.reopen_log(container)
        async with await runtime.attach(container) as session:
            await session.write(b"go on\n")
            await harness.exited(container)
        assert contents(path.read_bytes()) == [(b"stdout", b"F", b"new")]
        with pytest.raises(RuntimeRefused):
            await runtime.reopen_log(container)

    in_runtime(act)


def test_a_fast_writer_is_throttled_and_other_containers_are_not_affected(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        loud, quiet = RuntimeHarness(runtime, str(tmp_path / "loud")), RuntimeHarness(runtime, str(tmp_path / "quiet"))
        noise = await loud.start("sh", "-c", "yes")
        container = await quiet.start("sleep", "3600")
        keeper = max(processes_of_keeper(runtime, noise), default=0)
        before = resident_bytes(keeper)
        begun = asyncio.get_running_loop().time()
        size = 0
        while (seconds := asyncio.get_running_loop().time() - begun) < 1.0:
            assert await runtime.exec_sync(container, ["true"], 5) == CommandExited(0)
            assert await runtime.exec_sync(noise, ["true"], 5) == CommandExited(0)
            size = (tmp_path / "loud" / "c" / "0.log").stat().st_size
        assert size <= (seconds + 1) * 64 * 2**20 + 2**24
        assert resident_bytes(keeper) - before < 16 * 2**20
        await runtime.stop_container(noise, 1)
        record = await loud.container(noise)
        assert (record.state, record.exit_code) == (RecordState.EXITED, 143)
        with open(tmp_path / "loud" / "c" / "0.log", "rb") as file:
            file.seek(-10_000, os.SEEK_END)
            lines = contents(file.read())[1:]
        assert set(lines[:-1]) == {(b"stdout", b"F", b"y")}

    in_runtime(act)


def processes_of_keeper(runtime: ProcessRuntime, container_id: str) -> list[int]:
    """Return the keeper: the parent of a container's first process."""
    root = runtime._root
    with open(f"/proc/{pid_of(root, container_id)}/stat", "rb") as file:
        return [int(file.read().rpartition(b")")[2].split()[1])]


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- exits ----


def test_the_termination_message_is_the_file_or_the_end_of_the_log(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        sandbox = await harness.sandbox()
        policy: dict[str, Any] = {"termination_message_policy": "FallbackToLogsOnError"}
        expected = {}
        for name, script, message, spec in (
            ("file", "echo lost; printf bye > /dev/termination-log; exit 3", "bye", {}),
            ("log", "echo what went wrong; exit 3", "what went wrong\n", policy),
            ("well", "echo fine", "", policy),
        ):
            container = await harness.create(sandbox, "sh", "-c", script, name=name, **spec)
            await runtime.start_container(container)
            expected[container] = message
        assert {each: (await harness.exited(each)).message for each in expected} == expected

    in_runtime(act, jail="auto")


def test_a_missing_command_is_a_start_error(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        container = await harness.create(await harness.sandbox(), "/no/such/binary")
        with pytest.raises(RuntimeRefused, match="/no/such/binary"):
            await runtime.start_container(container)
        record = await harness.container(container)
        assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 128, "StartError")
        assert "/no/such/binary" in record.message
        assert record.started_at == datetime(1970, 1, 1, tzinfo=UTC)
        await runtime.start_container(container)  # the start was attempted

    in_runtime(act)


def test_a_stop_uses_the_configured_stop_signal(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, logs=str(tmp_path))
        script = "trap 'exit 7' USR1; trap '' TERM; echo ready; while :; do sleep 0.05; done"
        container = await harness.start("sh", "-c", script, lifecycle=Lifecycle(stop_signal="SIGUSR1"))
        await harness.wait_for_log(b"ready")
        await runtime.stop_container(container, 20)
        record = await harness.container(container)
        assert (record.exit_code, record.reason) == (7, "Error")

    in_runtime(act)


def test_processes_that_a_container_leaves_behind_are_killed() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        marker = "86397.25"
        scripts = f"setsid sh -c 'sleep {marker}' & sleep {marker} & sleep 0.1"
        container = await harness.start("sh", "-c", scripts)
        await harness.exited(container)
        await runtime.stop_sandbox((await harness.record()).sandboxes[0].id)
        assert running(marker) == []

    in_runtime(act)


def test_times_have_microseconds_and_are_ordered() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        record = await harness.exited(await harness.start("sleep", "0.2"))
        assert record.created_at is not None
        assert record.started_at is not None
        assert record.finished_at is not None
        assert record.created_at <= record.started_at <= record.finished_at
        # The start is recorded a moment after it happened.
        assert 0.1 < (record.finished_at - record.started_at).total_seconds() < 20
        assert any(at.microsecond for at in (record.created_at, record.started_at, record.finished_at))
        assert (record.reason, record.image, record.image_id, record.spec_hash) == ("Completed", "host", "host", "cafe")

    in_runtime(act)


# ---- records and events ----


def test_a_ready_pod_has_the_host_ips() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        pods = {NetworkMode.POD: RuntimeHarness(runtime), NetworkMode.NODE: RuntimeHarness(runtime, host_network=True)}
        for network, harness in pods.items():
            sandbox = await harness.sandbox()
            record = await harness.record()
            assert record.ips == HOST_IPS
            box = record.sandboxes[0]
            assert (box.ip, box.additional_ips, box.network) == (HOST_IPS[0], HOST_IPS[1:], network)
            await runtime.stop_sandbox(sandbox)
            assert (await harness.record()).ips == ()

    in_runtime(act)


def test_every_state_change_sends_an_event() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness, stream = RuntimeHarness(runtime), runtime.events()
        container = await harness.start("true")
        await harness.exited(container)
        await runtime.remove_container(container)
        sandbox = (await harness.record()).sandboxes[0].id
        await runtime.remove_sandbox(sandbox)
        events = [await anext(stream) for _ in range(8)]
        kind = RuntimeEventType
        assert [(it.container_id, it.type) for it in events] == [
            (sandbox, kind.CREATED),
            (sandbox, kind.STARTED),
            (container, kind.CREATED),
            (container, kind.STARTED),
            (container, kind.STOPPED),
            (container, kind.DELETED),
            (sandbox, kind.STOPPED),
            (sandbox, kind.DELETED),
        ]

    in_runtime(act)


def test_two_concurrent_removals_of_a_container_succeed() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "1000")
        await asyncio.gather(*(runtime.remove_container(container) for _ in range(3)))
        assert (await harness.record()).containers == ()

    in_runtime(act)


def test_an_event_stream_that_is_not_read_breaks() -> None:
    async def act() -> None:
        take_events = EventHub(limit=3)
        slow, quick = take_events.subscribe(), take_events.subscribe()
        for number in range(4):
            event = RuntimeEvent(PodUID("u"), str(number), RuntimeEventType.CREATED, datetime.now(UTC))
            take_events.send(event)
            assert await anext(quick) == event
        with pytest.raises(RuntimeUnavailable):
            await anext(slow)

    asyncio.run(act())


def test_a_second_agent_cannot_open_the_directory() -> None:
    async def act() -> None:
        with temporary_root() as root:
            async with opened(root):
                with pytest.raises(BadInput, match="another agent"):
                    await ProcessRuntime(root).open()
            async with opened(root) as again:
                assert await again.list_pods() == ()

    asyncio.run(act())


# ---- users, limits and namespaces ----


@asynccontextmanager
async def pod_cgroup(pod: Pod) -> AsyncIterator[str]:
    """The cgroup of a pod, removed at the end."""
    cgroups = await asyncio.to_thread(open_cgroups, own_root(str(pod.metadata.uid)))
    if isinstance(cgroups, NoCgroups):
        pytest.skip("cgroups cannot be written here")
    try:
        yield await cgroups.ensure(pod)
    finally:
        await cgroups.remove(PodUID(pod.metadata.uid or ""))
        await cgroups.close()


def test_exceeding_the_memory_limit_ends_with_OOMKilled() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        limits = ResourceRequirements(limits={"memory": "32Mi"})
        greedy = Container(name="greedy", image="host", resources=limits)
        harness = RuntimeHarness(runtime, containers=(greedy,))
        async with pod_cgroup(harness.pod) as parent:
            sandbox = await runtime.run_sandbox(SandboxConfig(pod=harness.pod, attempt=0, cgroup_parent=parent))
            greedy_id = await harness.create(sandbox, "tail", "/dev/zero", name="greedy", resources=limits)
            modest_id = await harness.create(sandbox, "sh", "-c", "exit 3", name="modest")
            # One after the other: the limit is also the pod's, and under load the kernel once killed both.
            await runtime.start_container(modest_id)
            assert (await harness.exited(modest_id)).reason == "Error"
            await runtime.start_container(greedy_id)
            record = await harness.exited(greedy_id)
            assert (record.exit_code, record.reason) == (137, "OOMKilled")
            await runtime.remove_sandbox(sandbox)

    in_runtime(act, jail="auto")


def test_containers_share_the_namespaces_that_the_pod_requests() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        isolation = await runtime.isolation()
        if isolation is None or isolation["namespaces"] == "none":
            pytest.skip("there are no namespaces here")
        for shared in (True, False):
            harness = RuntimeHarness(runtime, share_process_namespace=shared)
            sandbox = await harness.sandbox(hostname="web-1")
            first = await harness.create(sandbox, "sleep", "86397.125", name="first")
            second = await harness.create(sandbox, "sleep", "3600", name="second")
            for container in (first, second):
                await runtime.start_container(container)
            assert await runtime.exec_sync(second, ["hostname"], 5) == CommandExited(0, b"web-1\n")
            seen = await runtime.exec_sync(second, ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], 5)
            assert isinstance(seen, CommandExited)
            assert (b"86397.125" in seen.output) is shared
            await runtime.stop_container(first, 0)
            assert (await harness.container(second)).state is RecordState.RUNNING

    in_runtime(act, jail="auto")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_container_runs_as_the_configured_user() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start(
            "sleep", "3600", security_context=SecurityContext(run_as_user=1234, run_as_group=5)
        )
        assert await runtime.exec_sync(container, ["id", "-u"], 5) == CommandExited(0, b"1234\n")
        user = (await harness.container(container)).user
        assert user is not None
        assert (user.uid, user.gid) == (1234, 5)

    in_runtime(act, jail="auto")


def test_containers_do_not_inherit_the_keepers_oom_score() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "3600")
        score = await runtime.exec_sync(container, ["cat", "/proc/self/oom_score_adj"], 5)
        assert isinstance(score, CommandExited)
        assert int(score.output) >= 0
        assert int(Path(f"/proc/{pid_of(runtime._root, container)}/oom_score_adj").read_text()) >= 0

    in_runtime(act)


def test_a_keeper_ignores_all_signals_but_kill() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "3600")
        keeper = processes_of_keeper(runtime, container)[0]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            os.kill(keeper, number)
        assert await runtime.exec_sync(container, ["true"], 5) == CommandExited(0)
        assert is_alive(keeper)

    in_runtime(act)
