"""The process runtime beyond its contract: logs, last words, ends by force, what is told, who a container is."""

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
from podkeeper.model.probing import Exited
from podkeeper.model.runtime import ContainerState, NetworkMode
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType, SandboxConfig
from podkeeper.runtimes.events import EventHub
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.home import (
    HOST_IPS,
    Scene,
    contents,
    eventually,
    home_directory,
    in_runtime,
    is_alive,
    opened,
    pid_of,
    running,
)

# ---- output ----


def test_output_is_logged_in_the_cri_format(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, str(tmp_path / "logs"))
        container = await scene.start("sh", "-c", "echo out; echo err >&2; printf half")
        await scene.exited(container)
        assert sorted(contents(scene.log())) == [
            (b"stderr", b"F", b"err"),
            (b"stdout", b"F", b"out"),
            (b"stdout", b"P", b"half"),
        ]

    in_runtime(act)


def test_a_log_goes_on_in_a_new_file_after_rotation(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, str(tmp_path))
        container = await scene.start("sh", "-c", "echo old; read line; echo new", stdin=True)
        path = tmp_path / "c" / "0.log"
        await eventually(lambda: path.exists() and b"old" in path.read_bytes(), "the first line is there")
        path.rename(tmp_path / "c" / "0.log.rotated")
        await runtime.reopen_log(container)
        async with await runtime.attach(container) as session:
            await session.write(b"go on\n")
            await scene.exited(container)
        assert contents(path.read_bytes()) == [(b"stdout", b"F", b"new")]
        with pytest.raises(RuntimeRefused):
            await runtime.reopen_log(container)

    in_runtime(act)


def test_a_writer_at_full_speed_is_held_back_and_its_neighbour_does_not_notice(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        loud, quiet = Scene(runtime, str(tmp_path / "loud")), Scene(runtime, str(tmp_path / "quiet"))
        noise = await loud.start("sh", "-c", "yes")
        container = await quiet.start("sleep", "3600")
        keeper = max(processes_of_keeper(runtime, noise), default=0)
        before = resident_bytes(keeper)
        begun = asyncio.get_running_loop().time()
        size = 0
        while (seconds := asyncio.get_running_loop().time() - begun) < 1.0:
            assert await runtime.exec_sync(container, ["true"], 5) == Exited(0)
            assert await runtime.exec_sync(noise, ["true"], 5) == Exited(0)
            size = (tmp_path / "loud" / "c" / "0.log").stat().st_size
        assert size <= (seconds + 1) * 64 * 2**20 + 2**24
        assert resident_bytes(keeper) - before < 16 * 2**20
        await runtime.stop_container(noise, 1)
        record = await loud.container(noise)
        assert (record.state, record.exit_code) == (ContainerState.EXITED, 143)
        with open(tmp_path / "loud" / "c" / "0.log", "rb") as file:
            file.seek(-10_000, os.SEEK_END)
            lines = contents(file.read())[1:]
        assert set(lines[:-1]) == {(b"stdout", b"F", b"y")}

    in_runtime(act)


def processes_of_keeper(runtime: ProcessRuntime, container_id: str) -> list[int]:
    """The parent of a container's first process."""
    root = runtime._root
    with open(f"/proc/{pid_of(root, container_id)}/stat", "rb") as file:
        return [int(file.read().rpartition(b")")[2].split()[1])]


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- ends ----


def test_the_message_of_an_end_is_what_the_container_wrote_or_the_end_of_its_log(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, str(tmp_path))
        sandbox = await scene.sandbox()
        policy: dict[str, Any] = {"termination_message_policy": "FallbackToLogsOnError"}
        expected = {}
        for name, script, message, spec in (
            ("file", "echo lost; printf bye > /dev/termination-log; exit 3", "bye", {}),
            ("log", "echo what went wrong; exit 3", "what went wrong\n", policy),
            ("well", "echo fine", "", policy),
        ):
            container = await scene.create(sandbox, "sh", "-c", script, name=name, **spec)
            await runtime.start_container(container)
            expected[container] = message
        assert {each: (await scene.exited(each)).message for each in expected} == expected

    in_runtime(act, jail="auto")


def test_a_command_that_is_not_there_is_a_start_error(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, str(tmp_path))
        container = await scene.create(await scene.sandbox(), "/no/such/binary")
        with pytest.raises(RuntimeRefused, match="/no/such/binary"):
            await runtime.start_container(container)
        record = await scene.container(container)
        assert (record.state, record.exit_code, record.reason) == (ContainerState.EXITED, 128, "StartError")
        assert "/no/such/binary" in record.message
        assert record.started_at == datetime(1970, 1, 1, tzinfo=UTC)
        await runtime.start_container(container)  # it has had its try

    in_runtime(act)


def test_a_stop_uses_the_containers_own_signal(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, logs=str(tmp_path))
        script = "trap 'exit 7' USR1; trap '' TERM; echo ready; while :; do sleep 0.05; done"
        container = await scene.start("sh", "-c", script, lifecycle=Lifecycle(stop_signal="SIGUSR1"))
        await scene.said(b"ready")
        await runtime.stop_container(container, 20)
        record = await scene.container(container)
        assert (record.exit_code, record.reason) == (7, "Error")

    in_runtime(act)


def test_what_a_container_leaves_behind_ends_with_it() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime)
        marker = "86397.25"
        scripts = f"setsid sh -c 'sleep {marker}' & sleep {marker} & sleep 0.1"
        container = await scene.start("sh", "-c", scripts)
        await scene.exited(container)
        await runtime.stop_sandbox((await scene.record()).sandboxes[0].id)
        assert running(marker) == []

    in_runtime(act)


def test_times_have_fractions_of_seconds_and_follow_each_other() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime)
        record = await scene.exited(await scene.start("sleep", "0.2"))
        assert record.created_at is not None
        assert record.started_at is not None
        assert record.finished_at is not None
        assert record.created_at <= record.started_at <= record.finished_at
        # That it has started is noted a moment after it did.
        assert 0.1 < (record.finished_at - record.started_at).total_seconds() < 20
        assert any(at.microsecond for at in (record.created_at, record.started_at, record.finished_at))
        assert (record.reason, record.image, record.image_id, record.spec_hash) == ("Completed", "host", "host", "cafe")

    in_runtime(act)


# ---- what is told ----


def test_a_pod_has_the_hosts_addresses_while_it_is_ready() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        pods = {NetworkMode.POD: Scene(runtime), NetworkMode.NODE: Scene(runtime, host_network=True)}
        for network, scene in pods.items():
            sandbox = await scene.sandbox()
            record = await scene.record()
            assert record.ips == HOST_IPS
            box = record.sandboxes[0]
            assert (box.ip, box.additional_ips, box.network) == (HOST_IPS[0], HOST_IPS[1:], network)
            await runtime.stop_sandbox(sandbox)
            assert (await scene.record()).ips == ()

    in_runtime(act)


def test_every_step_is_news() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene, stream = Scene(runtime), runtime.events()
        container = await scene.start("true")
        await scene.exited(container)
        await runtime.remove_container(container)
        sandbox = (await scene.record()).sandboxes[0].id
        await runtime.remove_sandbox(sandbox)
        told = [await anext(stream) for _ in range(8)]
        kind = RuntimeEventType
        assert [(it.container_id, it.type) for it in told] == [
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


def test_a_container_that_is_removed_twice_at_once_is_gone_for_both() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime)
        container = await scene.start("sleep", "1000")
        await asyncio.gather(*(runtime.remove_container(container) for _ in range(3)))
        assert (await scene.record()).containers == ()

    in_runtime(act)


def test_who_does_not_fetch_news_has_the_stream_broken() -> None:
    async def act() -> None:
        news = EventHub(limit=3)
        slow, quick = news.subscribe(), news.subscribe()
        for number in range(4):
            event = RuntimeEvent(PodUID("u"), str(number), RuntimeEventType.CREATED, datetime.now(UTC))
            news.tell(event)
            assert await anext(quick) == event
        with pytest.raises(RuntimeUnavailable):
            await anext(slow)

    asyncio.run(act())


def test_one_agent_at_a_time_has_a_directory() -> None:
    async def act() -> None:
        with home_directory() as root:
            async with opened(root):
                with pytest.raises(BadInput, match="another agent"):
                    await ProcessRuntime(root).open()
            async with opened(root) as again:
                assert await again.list_pods() == ()

    asyncio.run(act())


# ---- who it is, and what it sees ----


@asynccontextmanager
async def pod_cgroup(pod: Pod) -> AsyncIterator[str]:
    """The cgroup of a pod, which is gone in the end."""
    cgroups = await asyncio.to_thread(open_cgroups, cgroup, own_root(str(pod.metadata.uid)))
    if isinstance(cgroups, NoCgroups):
        pytest.skip("cgroups cannot be written here")
    try:
        yield await cgroups.ensure(pod)
    finally:
        await cgroups.remove(PodUID(pod.metadata.uid or ""))
        await cgroups.close()


def test_who_takes_more_memory_than_its_limit_is_killed_and_that_is_the_reason() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        limits = ResourceRequirements(limits={"memory": "32Mi"})
        greedy = Container(name="greedy", image="host", resources=limits)
        scene = Scene(runtime, containers=(greedy,))
        async with pod_cgroup(scene.pod) as parent:
            sandbox = await runtime.run_sandbox(SandboxConfig(pod=scene.pod, attempt=0, cgroup_parent=parent))
            greedy_id = await scene.create(sandbox, "tail", "/dev/zero", name="greedy", resources=limits)
            modest_id = await scene.create(sandbox, "sh", "-c", "exit 3", name="modest")
            for container in (greedy_id, modest_id):
                await runtime.start_container(container)
            record = await scene.exited(greedy_id)
            assert (record.exit_code, record.reason) == (137, "OOMKilled")
            assert (await scene.exited(modest_id)).reason == "Error"
            await runtime.remove_sandbox(sandbox)

    in_runtime(act, jail="auto")


def test_containers_of_a_pod_share_what_it_says() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        isolation = await runtime.isolation()
        if isolation is None or isolation["namespaces"] == "none":
            pytest.skip("there are no namespaces here")
        for shared in (True, False):
            scene = Scene(runtime, share_process_namespace=shared)
            sandbox = await scene.sandbox(hostname="web-1")
            first = await scene.create(sandbox, "sleep", "86397.125", name="first")
            second = await scene.create(sandbox, "sleep", "3600", name="second")
            for container in (first, second):
                await runtime.start_container(container)
            assert await runtime.exec_sync(second, ["hostname"], 5) == Exited(0, b"web-1\n")
            seen = await runtime.exec_sync(second, ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], 5)
            assert isinstance(seen, Exited)
            assert (b"86397.125" in seen.output) is shared
            await runtime.stop_container(first, 0)
            assert (await scene.container(second)).state is ContainerState.RUNNING

    in_runtime(act, jail="auto")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_container_runs_as_the_user_it_is_told() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime)
        container = await scene.start(
            "sleep", "3600", security_context=SecurityContext(run_as_user=1234, run_as_group=5)
        )
        assert await runtime.exec_sync(container, ["id", "-u"], 5) == Exited(0, b"1234\n")
        user = (await scene.container(container)).user
        assert user is not None
        assert (user.uid, user.gid) == (1234, 5)

    in_runtime(act, jail="auto")


def test_containers_are_not_spared_when_memory_is_short() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime)
        container = await scene.start("sleep", "3600")
        score = await runtime.exec_sync(container, ["cat", "/proc/self/oom_score_adj"], 5)
        assert isinstance(score, Exited)
        assert int(score.output) >= 0
        assert int(Path(f"/proc/{pid_of(runtime._root, container)}/oom_score_adj").read_text()) >= 0

    in_runtime(act)


def test_a_keeper_is_deaf_to_all_signals_but_one() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime)
        container = await scene.start("sleep", "3600")
        keeper = processes_of_keeper(runtime, container)[0]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            os.kill(keeper, number)
        assert await runtime.exec_sync(container, ["true"], 5) == Exited(0)
        assert is_alive(keeper)

    in_runtime(act)
