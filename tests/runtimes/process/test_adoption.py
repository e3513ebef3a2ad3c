"""Deaths of agents, fork servers and keepers, and the adoption by the next agent."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from podkeeper.model.probing import CommandExited, NotRun
from podkeeper.model.runtime import RecordState
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.runtimes.process.fork_client import process_state
from podkeeper.runtimes.process.keeper.files import STOPPED_FILE, read_json, write_json
from podkeeper.runtimes.process.keeper_client import KeeperTimeouts
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.agent import mark_of
from tests.runtimes.process.harness import (
    RuntimeHarness,
    eventually,
    is_alive,
    keepers_of,
    opened,
    pid_of,
    remove_all,
    temporary_root,
    temporary_runtime,
    wait_until,
)
from tests.runtimes.runtime_pod import TIMEOUT_SECONDS

SHORT = KeeperTimeouts(answer_seconds=0.3, kill_seconds=0.5)


def processes_with(word: str) -> list[int]:
    """Return the processes that have a word as an argument."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and word.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return [pid for pid in found if is_alive(pid)]


def fork_servers_of(root: str) -> list[int]:
    return [pid for pid in processes_with(root) if name_of(pid) == "podkeeper-forks\n"]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


@contextmanager
def agent(root: str, jail: str, pods: int, seed: int) -> Iterator[subprocess.Popen[str]]:
    """An agent process, killed at the end. Its fork server must end with it."""
    command = [sys.executable, "-m", "tests.runtimes.process.agent", root, jail, str(pods), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        wait_until(lambda: not fork_servers_of(root), "the fork server ends with its agent")


@pytest.mark.parametrize("jail", ["plain", "auto"])
def test_agents_killed_at_any_moment_lose_and_duplicate_no_container(jail: str) -> None:
    pods, dice = 6, random.Random(5)

    async def inspect(root: str) -> None:
        async with opened(root, jail) as runtime, asyncio.timeout(TIMEOUT_SECONDS):
            await eventually(lambda: not list(Path(root, "sandboxes").glob(".gone-*")), "removed sandboxes are deleted")
            while True:  # a keeper may still be shutting down
                boxes = {box.id: box.ready for pod in await runtime.list_pods() for box in pod.sandboxes}
                if {box for box, ready in boxes.items() if ready} == keepers_of(root).keys():
                    break
                await asyncio.sleep(0.01)
            running = [
                pid_of(root, container.id)
                for pod in await runtime.list_pods()
                for container in pod.containers
                if container.state is RecordState.RUNNING
            ]
            marked = [pid for number in range(pods) for pid in processes_with(mark_of(root, number))]
            assert sorted(running) == sorted(marked)
            assert all(len(processes_with(mark_of(root, number))) <= 1 for number in range(pods))
            assert all(len([box for box in pod.sandboxes if box.ready]) <= 1 for pod in await runtime.list_pods())
            before = {pid: Path(f"/proc/{pid}/stat").read_text().split()[21] for pid in running}
        async with opened(root, jail) as runtime:  # a second start without changes reports the same
            after = {pid: Path(f"/proc/{pid}/stat").read_text().split()[21] for pid in running}
            assert after == before
            assert {box.id: box.ready for pod in await runtime.list_pods() for box in pod.sandboxes} == boxes

    async def clean_up(root: str) -> None:
        async with opened(root, jail) as runtime:
            await remove_all(runtime, root)

    with temporary_root() as root:
        try:
            for life in range(4):
                with agent(root, jail, pods, seed=life):
                    time.sleep(dice.uniform(0, 0.5))
                asyncio.run(inspect(root))
        finally:
            asyncio.run(clean_up(root))
        assert [pid for number in range(pods) for pid in processes_with(mark_of(root, number))] == []


def test_an_exit_without_an_agent_has_its_real_exit_code(tmp_path: Path) -> None:
    async def first_agent(root: str, go: Path) -> tuple[str, str, str, int]:
        async with opened(root) as runtime:
            harness = RuntimeHarness(runtime, str(tmp_path / "logs"))
            script = f"echo begun; while [ ! -e {go} ]; do sleep 0.01; done; echo ended; exit 7"
            ends = await harness.start("sh", "-c", script, name="ends")
            lives = await harness.create((await harness.record()).sandboxes[0].id, "sleep", "3600", name="lives")
            await runtime.start_container(lives)
            return harness.uid, ends, lives, pid_of(root, lives)

    async def second_agent(root: str, uid: str, ends: str, lives: str, pid: int) -> None:
        async with opened(root) as runtime:
            [pod] = await runtime.list_pods()
            assert pod.uid == uid
            assert pod.sandboxes[0].ready
            ended, living = pod.container("ends"), pod.container("lives")
            assert ended is not None
            assert living is not None
            assert (ended.id, ended.state, ended.exit_code, ended.reason) == (ends, RecordState.EXITED, 7, "Error")
            assert (living.id, living.state) == (lives, RecordState.RUNNING)
            assert pid_of(root, lives) == pid
            assert await runtime.exec_sync(lives, ["echo", "hello"], 5) == CommandExited(0, b"hello\n")
            log = (tmp_path / "logs" / "ends" / "0.log").read_bytes()
            assert log.count(b"begun") == log.count(b"ended") == 1
            await remove_all(runtime, root)

    with temporary_root() as root:
        go = tmp_path / "go"
        uid, ends, lives, pid = asyncio.run(first_agent(root, go))
        go.touch()
        state = next(Path(root).glob(f"sandboxes/*/containers/{ends}/state.json"))
        wait_until(lambda: (read_json(str(state)) or {})["state"] == "exited", "it ended with no agent about")
        asyncio.run(second_agent(root, uid, ends, lives, pid))


def test_a_dead_fork_server_is_restarted_and_keepers_keep_running() -> None:
    async def act() -> None:
        async with temporary_runtime() as runtime, asyncio.timeout(TIMEOUT_SECONDS):
            before = RuntimeHarness(runtime)
            container = await before.start("sleep", "3600")
            fork_server = runtime._fork_server
            for restart in (runtime.health, RuntimeHarness(runtime).sandbox):
                old = fork_server.pid
                os.kill(old, signal.SIGKILL)
                await eventually(lambda: not fork_server.alive, "the end is detected")
                await restart()
                assert fork_server.pid not in (0, old)
            assert await runtime.exec_sync(container, ["true"], 5) == CommandExited(0)
            assert (await runtime.health()).runtime_ready

    asyncio.run(act())


def test_a_stopped_fork_server_is_replaced() -> None:
    async def act() -> None:
        async with temporary_runtime() as runtime, asyncio.timeout(TIMEOUT_SECONDS):
            container = await RuntimeHarness(runtime).start("sleep", "3600")
            fork_server = runtime._fork_server
            old = fork_server.pid
            os.kill(old, signal.SIGSTOP)
            await eventually(lambda: process_state(old) == "T", "it is stopped")
            await RuntimeHarness(runtime).start("sleep", "3600")
            assert fork_server.pid not in (0, old)
            assert not is_alive(old)
            assert await runtime.exec_sync(container, ["true"], 5) == CommandExited(0)

    asyncio.run(act())


@pytest.mark.parametrize("during_exec", [False, True], ids=["quiet", "during a command"])
def test_a_stopped_keeper_is_noticed_and_recovers(during_exec: bool) -> None:
    timeouts = KeeperTimeouts(answer_seconds=0.2, not_ready_seconds=0.3, kill_seconds=0.3, ping_period_seconds=0.05)

    async def act() -> None:
        with temporary_root() as root:
            async with opened(root, timeouts=timeouts) as runtime:
                harness = RuntimeHarness(runtime)
                container = await harness.start("sleep", "3600")
                keeper = keepers_of(root)[(await harness.record()).sandboxes[0].id]
                sleeping = runtime.exec_sync(container, ["sleep", "60"], 60) if during_exec else None
                command = None if sleeping is None else asyncio.ensure_future(sleeping)
                await asyncio.sleep(0.2)  # a busy keeper must be able to answer some pings
                os.kill(keeper, signal.SIGSTOP)
                try:
                    await _until(lambda: _is_ready(harness, False))
                    if command is not None:
                        assert isinstance(await command, NotRun)
                    os.kill(keeper, signal.SIGCONT)
                    await _until(lambda: _is_ready(harness, True))
                    assert await runtime.exec_sync(container, ["true"], 5) == CommandExited(0)
                    await remove_all(runtime, root)
                finally:
                    if is_alive(keeper):
                        os.kill(keeper, signal.SIGCONT)

    asyncio.run(act())


@pytest.mark.parametrize("jail", ["plain", "auto"])
def test_containers_are_killed_with_their_keeper_and_reported(jail: str) -> None:
    async def act() -> None:
        async with temporary_runtime(jail) as runtime, asyncio.timeout(TIMEOUT_SECONDS):
            root = runtime._root
            harness, other = RuntimeHarness(runtime), RuntimeHarness(runtime)
            ended = await harness.start("sh", "-c", "exit 3", name="ended")
            await harness.exited(ended)
            lived = await harness.create((await harness.record()).sandboxes[0].id, "sleep", "3600", name="lived")
            await runtime.start_container(lived)
            neighbour = await other.start("sleep", "3600")
            pid, [box] = pid_of(root, lived), (await harness.record()).sandboxes
            stream = runtime.events()
            os.kill(keepers_of(root)[box.id], signal.SIGKILL)
            assert (await anext(stream)).container_id == lived
            await eventually(lambda: not is_alive(pid), "its process is gone")
            record = await harness.exited(lived)
            assert (record.exit_code, record.reason) == (137, "Error")
            assert "keeper" in record.message
            assert (await harness.container(ended)).exit_code == 3
            assert (await anext(stream)).container_id == box.id
            assert [it.ready for it in (await harness.record()).sandboxes] == [False]
            assert (await other.container(neighbour)).state is RecordState.RUNNING
            finished_at = (await harness.container(lived)).finished_at
            await runtime.stop_sandbox(box.id)
            await runtime.remove_container(ended)
            assert [it.id for it in (await harness.record()).containers] == [lived]
            assert (await harness.container(lived)).finished_at == finished_at
            again = await harness.sandbox(1)
            assert [(it.id, it.ready) for it in (await harness.record()).sandboxes] == [(again, True), (box.id, False)]

    asyncio.run(act())


def test_a_keeper_that_died_without_an_agent_is_reported_the_same_after_each_start() -> None:
    async def act() -> None:
        with temporary_root() as root:
            async with opened(root) as runtime:
                harness = RuntimeHarness(runtime)
                container = await harness.start("sleep", "3600")
            for keeper in keepers_of(root).values():
                os.kill(keeper, signal.SIGKILL)
            wait_until(lambda: not keepers_of(root), "it is dead")
            ends = []
            for _ in range(2):
                async with opened(root) as harness.runtime:
                    record = await harness.container(container)
                    assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 137, "Error")
                    assert not (await harness.record()).sandboxes[0].ready
                    ends.append(record)
            assert ends[0] == ends[1]
            async with opened(root) as harness.runtime:
                await remove_all(harness.runtime, root)

    asyncio.run(act())


def test_after_a_reboot_nothing_runs_and_a_reused_pid_is_not_killed() -> None:
    async def act() -> None:
        with temporary_root() as root, subprocess.Popen(["sleep", "60"], start_new_session=True) as unrelated:
            async with opened(root) as runtime:
                harness = RuntimeHarness(runtime)
                container = await harness.start("sleep", "3600")
                torn, torn_off = [await harness.start("true", name=name) for name in ("torn", "torn-off")]
            [(sandbox, keeper)] = keepers_of(root).items()
            os.kill(keeper, signal.SIGKILL)
            wait_until(lambda: not keepers_of(root), "it is dead")
            directory = Path(root, "sandboxes", sandbox)
            for path, changes in (
                (directory / "keeper.json", {"boot_id": "another", "pid": unrelated.pid}),
                (directory / "containers" / container / "state.json", {"pid": unrelated.pid}),
            ):
                write_json(str(path), {**(read_json(str(path)) or {}), **changes})
            (directory / "containers" / torn / "state.json").write_text("")  # lost in the crash
            (directory / "containers" / torn_off / "config.json").write_text("{")
            async with opened(root) as harness.runtime:
                assert {it.id for it in (await harness.record()).containers} == {container, torn}
                for record in (await harness.record()).containers:
                    assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 255, "Unknown")
                assert not (await harness.record()).sandboxes[0].ready
                await remove_all(harness.runtime, root)
            assert unrelated.poll() is None
            unrelated.kill()

    asyncio.run(act())


@pytest.mark.parametrize("is_hung", [False, True], ids=["for a moment", "for long"])
def test_an_unresponsive_keeper_is_reported_delays_no_other_pod_and_recovers(is_hung: bool) -> None:
    timeouts = KeeperTimeouts(answer_seconds=0.3, not_ready_seconds=0.5 if is_hung else 60.0)

    async def act() -> None:
        with temporary_root() as root:
            async with opened(root) as runtime:
                silent, well = RuntimeHarness(runtime), RuntimeHarness(runtime)
                container = await silent.start("sleep", "3600")
                await well.start("sleep", "3600")
                keeper = keepers_of(root)[(await silent.record()).sandboxes[0].id]
            os.kill(keeper, signal.SIGSTOP)
            try:
                async with opened(root, timeouts=timeouts) as runtime:
                    silent.runtime = well.runtime = runtime
                    # The engine replaces a pod that is not ready, so a busy machine alone must not cause that.
                    assert (await silent.record()).sandboxes[0].ready
                    name = str(silent.pod.metadata.name)
                    await _until(lambda: _health_names(runtime, name))
                    if is_hung:
                        await _until(lambda: _is_ready(silent, False))
                    assert (await silent.record()).sandboxes[0].ready is not is_hung
                    assert (await silent.container(container)).state is RecordState.RUNNING
                    assert (await well.record()).sandboxes[0].ready
                    os.kill(keeper, signal.SIGCONT)
                    await _until(lambda: _is_ready(silent, True))
                    await _until(lambda: _health_names(runtime, ""))
                    await remove_all(runtime, root)
            finally:
                if is_alive(keeper):
                    os.kill(keeper, signal.SIGCONT)

    asyncio.run(act())


def test_containers_that_a_keeper_lost_are_removed_when_it_answers_again() -> None:
    """While the keeper does not answer, its files count. They may still list a container that it just removed."""

    async def act() -> None:
        with temporary_root() as root:
            async with opened(root) as runtime:
                harness = RuntimeHarness(runtime)
                container = await harness.start("sleep", "3600")
                sandbox = (await harness.record()).sandboxes[0].id
                keeper = keepers_of(root)[sandbox]
            os.kill(keeper, signal.SIGSTOP)
            try:
                directory = Path(root, "sandboxes", sandbox, "containers")
                shutil.copytree(directory / container, directory / "removed")
                async with opened(root, timeouts=KeeperTimeouts(answer_seconds=0.2, not_ready_seconds=60.0)) as runtime:
                    harness.runtime = runtime
                    assert {each.id for each in (await harness.record()).containers} == {container, "removed"}
                    await _until(lambda: _health_names(runtime, str(harness.pod.metadata.name)))
                    stream = runtime.events()
                    os.kill(keeper, signal.SIGCONT)
                    await _until(lambda: _health_names(runtime, ""))
                    assert {each.id for each in (await harness.record()).containers} == {container}
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        take_events = await anext(stream)
                    assert (take_events.container_id, take_events.type) == ("removed", RuntimeEventType.DELETED)
                    await remove_all(runtime, root)
            finally:
                if is_alive(keeper):
                    os.kill(keeper, signal.SIGCONT)

    asyncio.run(act())


async def _health_names(runtime: ProcessRuntime, name: str) -> bool:
    message = (await runtime.health()).message
    return name in message if name else message == ""


async def _is_ready(harness: RuntimeHarness, ready: bool) -> bool:
    return (await harness.record()).sandboxes[0].ready is ready


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await holds():
            await asyncio.sleep(0.02)


def test_removing_a_sandbox_kills_its_unresponsive_keeper() -> None:
    async def act() -> None:
        async with temporary_runtime(timeouts=SHORT) as runtime, asyncio.timeout(30):
            harness = RuntimeHarness(runtime)
            container = await harness.start("sleep", "3600")
            root, [box] = runtime._root, (await harness.record()).sandboxes
            pid, keeper = pid_of(root, container), keepers_of(root)[box.id]
            os.kill(keeper, signal.SIGSTOP)
            await runtime.stop_container(container, 0)
            assert not is_alive(pid)
            assert not is_alive(keeper)
            assert (await harness.container(container)).exit_code == 137

    asyncio.run(act())


def test_an_invalid_sandbox_directory_is_deleted_and_other_roots_are_not_touched(tmp_path: Path) -> None:
    async def act() -> None:
        async with temporary_runtime() as other:
            harness = RuntimeHarness(other)
            container = await harness.start("sleep", "3600")
            with temporary_root() as root:
                for number, content in enumerate((b'{"id": "half', b'{"id": "\xff"}', b'{"x": ' + b"[" * 2000)):
                    half_made = Path(root, "sandboxes", f"halfmade{number}")
                    half_made.mkdir(parents=True)
                    (half_made / "config.json").write_bytes(content)
                (Path(root, "sandboxes", ".gone-x") / "containers").mkdir(parents=True)
                async with opened(root) as runtime:
                    assert await runtime.list_pods() == ()
                    await eventually(lambda: os.listdir(Path(root, "sandboxes")) == [], "nothing is left")
            assert (await harness.container(container)).state is RecordState.RUNNING

    asyncio.run(act())


def test_fifty_pods_at_once() -> None:
    async def act() -> None:
        async with temporary_runtime() as runtime, asyncio.timeout(60):
            scenes = [RuntimeHarness(runtime) for _ in range(50)]
            containers = await asyncio.gather(*(harness.start("sleep", "3600") for harness in scenes))
            records = await runtime.list_pods()
            assert len(records) == len(set(containers)) == 50
            assert all(it.containers[0].state is RecordState.RUNNING for it in records)
            assert len(keepers_of(runtime._root)) == 50

    asyncio.run(act())


def test_leftovers_that_are_still_written_are_deleted() -> None:
    """A killed keeper writes its last files while its directory is deleted."""

    async def act() -> None:
        with temporary_root() as root:
            leftovers = Path(root, "sandboxes", ".gone-web-1")
            leftovers.mkdir(parents=True)
            (leftovers / STOPPED_FILE).touch()
            written_until = time.monotonic() + 0.1

            def write() -> None:
                with suppress(FileNotFoundError):
                    while time.monotonic() < written_until:
                        (leftovers / str(time.monotonic_ns())).touch()

            writer = threading.Thread(target=write)
            writer.start()
            try:
                async with opened(root):
                    await eventually(lambda: not leftovers.exists(), "the leftovers are deleted")
            finally:
                writer.join()

    asyncio.run(act())
