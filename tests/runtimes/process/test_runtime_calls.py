"""The runtime port on keepers in the event loop: requests, errors, adoption."""

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import BadInput, ImagePullFailed, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSpec
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import NotRun
from podkeeper.model.runtime import ImageRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.runtimes.process.keeper.files import Json, read_json, write_json
from podkeeper.runtimes.process.keeper_client import KeeperTimeouts
from podkeeper.runtimes.process.keeper_pool import new_id
from podkeeper.runtimes.process.launch_requests import request_of
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.testing.build import pod
from podkeeper.testing.port_calls import InjectedFault, PortCall, PortCalls
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.process.loop_keeper import LoopForkServer, LoopKeeper, LoopThreads

UID = PodUID("uid-web")
POD = pod("web", uid=UID)
HOST = ImageRecord(id="host", tags=("host",), pinned=True)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def config(name: str = "app", attempt: int = 0, **more: Any) -> ContainerConfig:
    values: dict[str, Any] = {"image": "host", "container": Container(name=name, image="busybox"), **more}
    return ContainerConfig(pod=POD, attempt=attempt, spec_hash="cafe", command=("true",), **values)


class Harness:
    def __init__(self, root: str) -> None:
        self.root = root
        self.calls = PortCalls()
        self.keepers: list[LoopKeeper] = []
        self.runtime = self.new_runtime()

    def new_runtime(self, **options: Any) -> ProcessRuntime:
        self.fork_server = LoopForkServer(self.keepers, self.calls)
        # Without pings, which would be among the requests.
        options["timeouts"] = dataclasses.replace(options.get("timeouts", KeeperTimeouts()), ping_period_seconds=0)
        return ProcessRuntime(self.root, fork_server=self.fork_server, host_ips=lambda: ("192.0.2.7",), **options)

    @property
    def sandboxes(self) -> list[str]:
        return sorted(os.listdir(f"{self.root}/sandboxes"))

    async def sandbox(self, attempt: int = 0, **more: Any) -> str:
        return await self.runtime.run_sandbox(SandboxConfig(pod=POD, attempt=attempt, **more))

    async def running(self, name: str = "app") -> tuple[str, str]:
        """Create a sandbox with a running container."""
        box = await self.sandbox()
        container = await self.runtime.create_container(box, config(name))
        await self.runtime.start_container(container)
        return box, container

    async def restart(self, **options: Any) -> None:
        await self.runtime.close()
        self.runtime = self.new_runtime(**options)
        await self.runtime.open()

    def requests(self, do: str) -> list[Json]:
        """Return the requests of one kind that the newest keeper received, without IDs."""
        sent = [request for request in self.keepers[-1].requests if request["do"] == do]
        return [{key: value for key, value in request.items() if key != "id"} for request in sent]

    async def states(self) -> list[tuple[int, RecordState]]:
        record = await self.runtime.pod_record(UID)
        return [(each.restart_count, each.state) for each in record.containers]


@asynccontextmanager
async def opened() -> AsyncIterator[Harness]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-runtime-", dir=MEMORY) as root:
        harness = Harness(root)
        loop = asyncio.get_running_loop()
        reading, writing = socket.socketpair()
        loop.add_reader(reading.fileno(), lambda: None)  # if it waits for a file, the loop waits for threads, too
        try:
            await harness.runtime.open()
            yield harness
        finally:
            await harness.runtime.close()
            for keeper in harness.keepers:
                keeper.die()
            loop.remove_reader(reading.fileno())
            reading.close()
            writing.close()


def in_runtime(act: Callable[[Harness], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened() as harness:
            await act(harness)

    simulate(main())


def test_an_id_is_thirteen_letters_and_digits() -> None:
    ids = {new_id() for _ in range(50)}
    assert len(ids) == 50
    assert {len(each) for each in ids} == {13}
    assert all(each.isalnum() and each == each.lower() for each in ids)


@pytest.mark.parametrize("was_open", [True, False])
def test_calls_before_open_and_after_close_are_refused(was_open: bool) -> None:
    async def act(harness: Harness) -> None:
        _, container = await harness.running()
        await harness.runtime.close()
        assert harness.fork_server.closed
        if not was_open:
            harness.runtime = harness.new_runtime()
        runtime = harness.runtime
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: harness.sandbox(),
            lambda: runtime.stop_sandbox("x"),
            lambda: runtime.remove_sandbox("x"),
            lambda: runtime.create_container("x", config()),
            lambda: runtime.start_container(container),
            lambda: runtime.stop_container(container, 1),
            lambda: runtime.remove_container(container),
            lambda: runtime.list_pods(),
            lambda: runtime.pod_record(UID),
            lambda: runtime.health(),
            lambda: runtime.clear("/x"),
            lambda: runtime.give("/x", 1),
            lambda: runtime.reopen_log(container),
            lambda: runtime.attach(container),
        ]
        for call in calls:
            with pytest.raises(RuntimeUnavailable, match=r"^cannot use the process runtime: it is not open$"):
                await call()
        assert await runtime.exec_sync(container, ["true"], 1) == NotRun(
            "cannot use the process runtime: it is not open"
        )

    in_runtime(act)


# ---- sandboxes -------------------------------------------------------------------------------


def test_a_sandbox_stores_its_configuration() -> None:
    async def act(harness: Harness) -> None:
        box = await harness.sandbox(2, hostname="web", log_directory="/logs", cgroup_parent="/pods")
        facts = read_json(f"{harness.root}/sandboxes/{box}/config.json") or {}
        assert facts.pop("created_at") > 10**18
        assert facts == {
            "id": box,
            "uid": UID,
            "name": "web",
            "namespace": "default",
            "attempt": 2,
            "hostname": "web",
            "log_directory": "/logs",
            "cgroup_parent": "/pods",
            "host_network": False,
            "host_pid": False,
            "host_ipc": False,
            "share_process_namespace": False,
        }
        assert os.stat(f"{harness.root}/sandboxes/{box}").st_mode & 0o777 == 0o700
        assert os.stat(f"{harness.root}/sandboxes").st_mode & 0o777 == 0o700

    in_runtime(act)


@pytest.mark.parametrize("field", ["host_network", "host_pid", "host_ipc", "share_process_namespace"])
def test_a_sandbox_stores_the_namespace_options_of_its_pod(field: str) -> None:
    async def act(harness: Harness) -> None:
        options: dict[str, Any] = {field: True}
        pod = Pod(metadata=POD.metadata, spec=PodSpec(**options))
        box = await harness.runtime.run_sandbox(SandboxConfig(pod=pod, attempt=0))
        facts = json.loads(Path(harness.root, "sandboxes", box, "config.json").read_text())
        shared = ("host_network", "host_pid", "host_ipc", "share_process_namespace")
        assert [name for name in shared if facts[name]] == [field]

    in_runtime(act)


def test_run_sandbox_returns_a_ready_sandbox_of_the_same_attempt() -> None:
    async def act(harness: Harness) -> None:
        box = await harness.sandbox()
        assert await harness.sandbox() == box
        other = await harness.sandbox(1)
        await harness.runtime.stop_sandbox(box)
        assert [(each.id, each.ready) for each in (await harness.runtime.pod_record(UID)).sandboxes] == [
            (other, True),
            (box, False),
        ]
        fresh = await harness.sandbox()
        assert fresh not in (box, other)
        assert harness.sandboxes == sorted((fresh, other))
        await harness.runtime.stop_sandbox("unknown")
        await harness.runtime.remove_sandbox("unknown")

    in_runtime(act)


def test_stop_sandbox_shuts_its_keeper_down() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        (keeper,) = harness.keepers
        await harness.runtime.stop_sandbox(box)
        assert (harness.requests("shutdown"), keeper.alive) == ([{"do": "shutdown"}], False)
        assert await harness.states() == [(0, RecordState.EXITED)]
        await harness.runtime.stop_sandbox(box)
        assert len(harness.requests("shutdown")) == 1
        await harness.runtime.remove_sandbox(box)
        assert harness.sandboxes == []
        assert await harness.runtime.list_pods() == ()

    in_runtime(act)


# ---- containers ------------------------------------------------------------------------------


def test_create_sends_the_facts_of_the_container() -> None:
    async def act(harness: Harness) -> None:
        box = await harness.sandbox()
        made = await harness.runtime.create_container(box, config(attempt=3))
        (request,) = harness.requests("create")
        facts = request["facts"]
        assert facts.pop("created_at") > 10**18
        user = facts.pop("user")
        assert facts == {"name": "app", "attempt": 3, "image": "busybox", "image_id": "host", "spec_hash": "cafe"}
        assert (user is None) == (os.geteuid() != 0)
        assert (request["container"], request["target"]) == (made, "")
        launch = request["launch"]
        assert launch["directory"] == f"{harness.root}/sandboxes/{box}/containers/{made}"
        assert (launch["hidden"], launch["most_processes"], launch["argv"]) == ([harness.root], 0, ["true"])

    in_runtime(act)


@pytest.mark.parametrize(("limit", "most"), [(None, 0), (-1, 0), (100, 100)])
def test_the_options_of_the_runtime_reach_the_launch(limit: int | None, most: int) -> None:
    async def act(harness: Harness) -> None:
        await harness.restart(hidden=["/secret"], pod_pids_limit=limit, host_images=["busy*"])
        box = await harness.sandbox(hostname="web")
        await harness.runtime.create_container(box, config(image="busybox"))
        (request,) = harness.requests("create")
        launch = request["launch"]
        assert (launch["hidden"], launch["most_processes"]) == ([harness.root, "/secret"], most)
        assert launch["hostname"] == "web"

    in_runtime(act)


def test_create_is_refused_with_the_reason() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        create = harness.runtime.create_container
        refusals: dict[str, Callable[[], Awaitable[str]]] = {
            "cannot create container app: image nginx is not on the node": lambda: create(box, config(image="nginx")),
            "cannot create container app: sandbox other is not ready": lambda: create("other", config()),
            "cannot create container app: attempt 0 has already started": lambda: create(box, config()),
        }
        for text, call in refusals.items():
            with pytest.raises(RuntimeRefused, match=rf"^{text}$"):
                await call()
        await harness.runtime.stop_sandbox(box)
        with pytest.raises(RuntimeRefused, match=rf"^cannot create container app: sandbox {box} is not ready$"):
            await create(box, config(attempt=1))
        assert len(harness.requests("create")) == 1

    in_runtime(act)


def test_a_container_of_the_same_attempt_that_never_started_is_replaced() -> None:
    async def act(harness: Harness) -> None:
        box = await harness.sandbox()
        first = await harness.runtime.create_container(box, config())
        other = await harness.runtime.create_container(box, config("other"))
        later = await harness.runtime.create_container(box, config(attempt=1))
        second = await harness.runtime.create_container(box, config())
        assert set(harness.keepers[-1].containers) == {other, later, second}
        assert harness.requests("remove") == [{"do": "remove", "container": first}]

    in_runtime(act)


def test_an_ephemeral_container_sends_its_target() -> None:
    async def act(harness: Harness) -> None:
        box, container = await harness.running("app")
        await harness.runtime.create_container(box, config("helper"))

        async def debug(name: str, target: str | None) -> str:
            spec = EphemeralContainer(name=name, image="host", target_container_name=target)
            return await harness.runtime.create_container(box, config(container=spec))

        await debug("one", "app")
        await debug("two", None)
        await debug("three", "")
        assert [each["target"] for each in harness.requests("create")][2:] == [container, "", ""]
        for target in ("helper", "missing"):
            text = f"cannot create container four: its target container {target} is not running"
            with pytest.raises(RuntimeRefused, match=rf"^{text}$"):
                await debug("four", target)

    in_runtime(act)


def test_start_is_refused_without_container_or_ready_sandbox() -> None:
    async def act(harness: Harness) -> None:
        box, container = await harness.running()
        await harness.runtime.start_container(container)
        assert len(harness.requests("start")) == 1
        with pytest.raises(RuntimeRefused, match=r"^cannot start container other: container not found$"):
            await harness.runtime.start_container("other")
        created = await harness.runtime.create_container(box, config("late"))
        await harness.runtime.stop_sandbox(box)
        with pytest.raises(RuntimeRefused, match=r"^cannot start container late: its sandbox is not ready$"):
            await harness.runtime.start_container(created)

    in_runtime(act)


@pytest.mark.parametrize(("grace", "sent"), [(30.0, 30.0), (0.0, 0.0), (-5.0, 0.0)])
def test_stop_sends_the_grace_period_only_for_a_running_container(grace: float, sent: float) -> None:
    async def act(harness: Harness) -> None:
        box, container = await harness.running()
        created = await harness.runtime.create_container(box, config("late"))
        await harness.runtime.stop_container(container, grace)
        for other in (container, created, "unknown"):
            await harness.runtime.stop_container(other, grace)
        assert harness.requests("stop") == [{"do": "stop", "container": container, "grace": sent}]

    in_runtime(act)


def test_a_container_unknown_to_its_keeper_counts_as_stopped() -> None:
    async def act(harness: Harness) -> None:
        _, container = await harness.running()
        harness.keepers[0].containers.clear()
        await harness.runtime.stop_container(container, 30)
        assert len(harness.requests("stop")) == 1

    in_runtime(act)


def test_cancel_stops_is_sent_to_every_ready_keeper() -> None:
    async def act(harness: Harness) -> None:
        first = await harness.sandbox()
        await harness.sandbox(1)
        await harness.sandbox(2)
        await harness.runtime.stop_sandbox(first)
        harness.keepers[1].hangs = True
        before = asyncio.get_running_loop().time()
        await harness.runtime.cancel_stops()
        assert asyncio.get_running_loop().time() - before == 2
        counts = [[request["do"] for request in keeper.requests].count("spare") for keeper in harness.keepers]
        assert counts == [0, 0, 1]

    in_runtime(act)


def test_a_container_is_removed_with_a_live_and_with_a_dead_keeper() -> None:
    async def act(harness: Harness) -> None:
        box, container = await harness.running()
        other = await harness.runtime.create_container(box, config("other"))
        await harness.runtime.remove_container(other)
        await harness.runtime.remove_container(other)
        assert harness.requests("remove") == [{"do": "remove", "container": other}]
        await harness.runtime.stop_sandbox(box)
        directory = Path(harness.root, "sandboxes", box, "containers", container)
        assert (directory / "config.json").exists()
        await harness.runtime.remove_container(container)
        assert (await harness.runtime.pod_record(UID)).containers == ()
        await harness.restart()
        assert (await harness.runtime.pod_record(UID)).containers == ()
        assert [each.id for each in (await harness.runtime.pod_record(UID)).sandboxes] == [box]

    in_runtime(act)


def test_exec_attach_and_reopen_log_need_a_running_container() -> None:
    async def act(harness: Harness) -> None:
        box = await harness.sandbox()
        created = await harness.runtime.create_container(box, config())
        runtime = harness.runtime
        calls: dict[str, Callable[[str], Awaitable[object]]] = {
            "run a command in": lambda each: runtime.exec_stream(each, ["true"], tty=False, stdin=False),
            "attach to": runtime.attach,
            "reopen the log of": runtime.reopen_log,
        }
        for purpose, call in calls.items():
            with pytest.raises(RuntimeRefused, match=rf"^cannot {purpose} container other: container not found$"):
                await call("other")
            with pytest.raises(RuntimeRefused, match=rf"^cannot {purpose} container app: it is not running$"):
                await call(created)
        assert await runtime.exec_sync(created, ["true"], 1) == NotRun(
            "cannot run a command in container app: it is not running"
        )
        await runtime.start_container(created)
        await runtime.reopen_log(created)
        assert harness.requests("reopen_log") == [{"do": "reopen_log", "container": created}]
        harness.keepers[0].hangs = True
        harness.keepers[0].disconnect()
        await asyncio.sleep(2.1)
        text = "cannot attach to container app: its keeper does not answer"
        with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
            await runtime.attach(created)

    in_runtime(act)


def test_health_restarts_a_dead_fork_server() -> None:
    async def act(harness: Harness) -> None:
        before = harness.fork_server.starts
        assert await harness.runtime.health() == RuntimeHealth()
        assert harness.fork_server.starts == before + 1
        assert await harness.runtime.isolation() is None

    in_runtime(act)


def test_a_container_without_an_image_has_an_empty_image_name() -> None:
    async def act(harness: Harness) -> None:
        box = await harness.sandbox()
        await harness.runtime.create_container(box, config(container=Container(name="app")))
        assert (await harness.runtime.pod_record(UID)).containers[0].image == ""

    in_runtime(act)


def test_reconnection_to_an_unresponsive_keeper_backs_off() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        address = Path(harness.root, "sandboxes", box, "keeper.sock")
        elsewhere = address.rename(address.with_name("elsewhere"))
        (keeper,) = harness.keepers
        keeper.disconnect()
        # Each attempt takes 1.88 s. The pauses between them are 0.2, 0.5, 1, 2, 5 and 5 s.
        seventh = 6 * 1.88 + 0.2 + 0.5 + 1 + 2 + 5 + 5
        await asyncio.sleep(0.5)
        assert await harness.runtime.health() == RuntimeHealth()  # the first attempt is not over
        await asyncio.sleep(seventh - 0.6)
        elsewhere.rename(address)
        sent = len(keeper.requests)
        assert await harness.runtime.health() != RuntimeHealth()
        await asyncio.sleep(0.2)
        assert (len(keeper.requests), await harness.runtime.health()) == (sent + 1, RuntimeHealth())

    in_runtime(act)


def test_the_host_image_is_the_only_image() -> None:
    async def act(harness: Harness) -> None:
        runtime = harness.runtime
        assert (await runtime.image("host"), await runtime.image("nginx")) == (HOST, None)
        assert await runtime.pull_image("host") == HOST
        with pytest.raises(ImagePullFailed):
            await runtime.pull_image("nginx")
        assert (await runtime.list_images(), await runtime.image_usage()) == ((HOST,), None)
        await runtime.remove_image("host")
        assert await runtime.image("host") == HOST

    in_runtime(act)


def test_creation_times_increase_even_if_the_clock_goes_back() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        await harness.runtime.close()
        path = f"{harness.root}/sandboxes/{box}/config.json"
        future = 4 * 10**18
        write_json(path, {**(read_json(path) or {}), "created_at": future})
        await harness.restart()
        await harness.runtime.create_container(box, config("next"))
        assert harness.requests("create")[1]["facts"]["created_at"] == future + 1000
        await harness.sandbox(1)
        newest = (await harness.runtime.pod_record(UID)).sandboxes[0]
        facts = read_json(f"{harness.root}/sandboxes/{newest.id}/config.json") or {}
        assert facts["created_at"] == future + 2000

    in_runtime(act)


# ---- adoption and loss of keepers ------------------------------------------------------------


def test_open_fails_while_another_agent_has_the_directory() -> None:
    async def act(harness: Harness) -> None:
        with pytest.raises(BadInput) as caught:
            await harness.new_runtime().open()
        text = "another agent uses it. Stop that agent or choose another directory"
        assert f"cannot use {harness.root}: {text}" in str(caught.value)
        await harness.restart()

    in_runtime(act)


def test_open_adopts_pods_and_deletes_invalid_directories() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        gone = await harness.sandbox(1)
        stopped = await harness.sandbox(2)
        await harness.runtime.stop_sandbox(stopped)
        await harness.runtime.close()
        harness.keepers[1].die()
        directory = Path(harness.root, "sandboxes")
        for name in ("rubbish", "renamed", "unborn", ".gone-a", ".gone-b"):
            (directory / name).mkdir()
        shutil.copy(directory / box / "config.json", directory / "renamed")
        write_json(
            str(directory / "unborn" / "config.json"),
            {**(read_json(str(directory / box / "config.json")) or {}), "id": "unborn"},
        )
        write_json(str(directory / ".gone-b" / "stopped.json"), {})
        await harness.restart()
        await asyncio.sleep(1)
        record = await harness.runtime.pod_record(UID)
        assert [(each.id, each.ready) for each in record.sandboxes] == [(stopped, False), (gone, False), (box, True)]
        assert await harness.states() == [(0, RecordState.RUNNING)]
        assert await harness.runtime.list_pods() == (record,)
        while set(harness.sandboxes) != {box, gone, stopped}:
            await asyncio.sleep(0.01)
        # Files of a keeper that was shut down need no privileges to delete: .gone-b.
        names = sorted(name.removeprefix(".gone-").split("-")[0] for name in harness.fork_server.cleared)
        assert names == ["a", "renamed", "rubbish", "unborn"]

    in_runtime(act)


def test_an_adopted_sandbox_sends_no_event() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        await harness.runtime.close()
        harness.runtime = harness.new_runtime()
        stream = harness.runtime.events()
        await harness.runtime.open()
        harness.keepers[0].exit(3)
        found: list[RuntimeEvent] = []
        while not found or found[-1].type != "stopped":
            found.append(await anext(stream))
        assert box not in {event.container_id for event in found}

    in_runtime(act)


@pytest.mark.parametrize("how", ["silent", "dead"])
def test_a_pod_without_a_responsive_keeper_is_adopted_without_events(how: str) -> None:
    async def act(harness: Harness) -> None:
        _, container = await harness.running()
        await harness.runtime.close()
        (keeper,) = harness.keepers
        keeper.hangs = True
        if how == "dead":
            keeper.die()
        harness.runtime = harness.new_runtime()
        stream = harness.runtime.events()
        await harness.runtime.open()
        listening = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(3)
        assert not listening.done()
        listening.cancel()
        (record,) = (await harness.runtime.pod_record(UID)).containers
        expected = RecordState.RUNNING if how == "silent" else RecordState.EXITED
        assert (record.id, record.state) == (container, expected)

    in_runtime(act)


@pytest.mark.parametrize("at_start", [False, True])
def test_health_names_an_unresponsive_keeper_and_its_pod_is_not_ready_after_a_minute(at_start: bool) -> None:
    async def act(harness: Harness) -> None:
        await harness.running()
        (keeper,) = harness.keepers
        keeper.hangs = True
        began = asyncio.get_running_loop().time()
        if at_start:
            await harness.restart(timeouts=KeeperTimeouts())
        else:
            keeper.disconnect()
        await asyncio.sleep(5)
        assert await harness.runtime.health() == RuntimeHealth(message="keepers that do not answer: default/web")
        assert await harness.states() == [(0, RecordState.RUNNING)]

        async def ready() -> bool:
            return (await harness.runtime.pod_record(UID)).sandboxes[0].ready

        while await ready():
            await asyncio.sleep(0.5)
        assert 60 <= asyncio.get_running_loop().time() - began <= 72
        keeper.hangs = False
        await asyncio.sleep(10)
        assert (await ready(), await harness.runtime.health()) == (True, RuntimeHealth())

    in_runtime(act)


def test_containers_of_a_dead_keeper_are_reported_as_exited() -> None:
    async def act(harness: Harness) -> None:
        _, container = await harness.running()
        harness.keepers[0].die()
        while (await harness.runtime.pod_record(UID)).sandboxes[0].ready:
            await asyncio.sleep(0.01)
        (record,) = (await harness.runtime.pod_record(UID)).containers
        assert (record.id, record.state, record.exit_code) == (container, RecordState.EXITED, 137)
        assert await harness.runtime.health() == RuntimeHealth()

    in_runtime(act)


def test_a_sandbox_that_is_stopping_is_not_ready_after_a_reconnection() -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        (keeper,) = harness.keepers
        keeper.leaving = True
        keeper.disconnect()
        await asyncio.sleep(1)
        assert harness.requests("state") == [{"do": "state"}]
        assert [each.ready for each in (await harness.runtime.pod_record(UID)).sandboxes] == [False]
        assert await harness.sandbox() != box

    in_runtime(act)


# ---- keepers that cannot be started or stopped -----------------------------------------------


def test_a_keeper_that_cannot_be_forked_leaves_no_files() -> None:
    async def act(harness: Harness) -> None:
        harness.calls.arm(InjectedFault(PortCall("fork_server", "fork_keeper", 0), RuntimeUnavailable))
        with pytest.raises(RuntimeUnavailable, match=r"^cannot fork_keeper: a fault was injected$"):
            await harness.sandbox()
        assert await harness.runtime.list_pods() == ()
        await asyncio.sleep(1)
        assert harness.sandboxes == []
        assert await harness.sandbox() in harness.sandboxes

    in_runtime(act)


def test_a_keeper_that_became_ready_too_late_is_killed() -> None:
    async def act(harness: Harness) -> None:
        creation = asyncio.ensure_future(harness.sandbox())
        while not harness.keepers:
            await asyncio.sleep(0)
        (keeper,) = harness.keepers
        keeper.hangs = True  # it does not detect that its connection was closed
        creation.cancel()
        await asyncio.sleep(10)
        assert len(harness.sandboxes) == 1
        keeper.die()
        await asyncio.sleep(10)
        assert harness.sandboxes == []

    in_runtime(act)


@pytest.mark.parametrize("how", ["never made", "removed"])
def test_files_that_cannot_be_deleted_are_deleted_by_the_next_agent(how: str) -> None:
    async def act(harness: Harness) -> None:
        for attempt in range(4):
            harness.calls.arm(InjectedFault(PortCall("fork_server", "clear", attempt), RuntimeUnavailable))
        if how == "removed":
            box = await harness.sandbox()
            harness.keepers[0].die()
            await harness.runtime.remove_sandbox(box)
        else:
            harness.calls.arm(InjectedFault(PortCall("fork_server", "fork_keeper", 0), RuntimeUnavailable))
            with pytest.raises(RuntimeUnavailable):
                await harness.sandbox()
        await asyncio.sleep(1)
        assert await harness.runtime.list_pods() == ()
        (left,) = harness.sandboxes
        assert left.startswith(".gone-")
        await harness.restart()
        await asyncio.sleep(1)
        assert harness.sandboxes == []

    in_runtime(act)


def seconds_of(work: Awaitable[object]) -> Awaitable[float]:
    async def measured() -> float:
        began = asyncio.get_running_loop().time()
        await work
        return asyncio.get_running_loop().time() - began

    return measured()


def test_a_keeper_that_survives_its_shutdown_is_killed() -> None:
    async def act(harness: Harness) -> None:
        box, container = await harness.running()
        (keeper,) = harness.keepers
        keeper.hangs = True
        # Its process does not exist and cannot be killed. It dies by itself during the attempt.
        asyncio.get_running_loop().call_later(1 + 45 + 2 + 0.5, keeper.die)
        assert await seconds_of(harness.runtime.stop_sandbox(box)) == pytest.approx(48.887)
        record = await harness.runtime.pod_record(UID)
        assert [each.ready for each in record.sandboxes] == [False]
        assert [(each.id, each.exit_code) for each in record.containers] == [(container, 137)]

    in_runtime(act)


@pytest.mark.parametrize("answers", [False, True])
def test_a_keeper_that_survives_the_kill_is_reported_and_stays(answers: bool) -> None:
    async def act(harness: Harness) -> None:
        box, _ = await harness.running()
        harness.keepers[0].hangs, harness.keepers[0].stays = not answers, answers
        text = r"^cannot kill the keeper of pod default/web: process \d+ is still alive$"
        with pytest.raises(RuntimeUnavailable, match=text):
            await harness.runtime.remove_sandbox(box)
        assert [each.id for each in (await harness.runtime.pod_record(UID)).sandboxes] == [box]
        assert harness.sandboxes == [box]

    in_runtime(act)


@pytest.mark.parametrize("then", ["comes back", "dies", "stays away"])
def test_a_stop_waits_for_an_unreachable_keeper(then: str) -> None:
    async def act(harness: Harness) -> None:
        box, container = await harness.running()
        (keeper,) = harness.keepers
        address = Path(harness.root, "sandboxes", box, "keeper.sock")
        elsewhere = address.rename(address.with_name("elsewhere"))
        keeper.disconnect()
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(LoopThreads())
        if then == "stays away":
            began = loop.time()
            with pytest.raises(RuntimeUnavailable, match=r"^cannot kill the keeper"):
                await harness.runtime.stop_container(container, 5)
            assert loop.time() - began == pytest.approx(45 + 2 * 1.887)
            return
        loop.call_later(20, lambda: elsewhere.rename(address) if then == "comes back" else keeper.die())
        seconds = await seconds_of(harness.runtime.stop_container(container, 5))
        assert 19 < seconds < 28
        assert await harness.states() == [(0, RecordState.EXITED)]
        sent = [{"do": "stop", "container": container, "grace": 5.0}] if then == "comes back" else []
        assert harness.requests("stop") == sent

    in_runtime(act)


def test_creations_in_a_pod_are_serialized() -> None:
    async def act(harness: Harness) -> None:
        first, second = await asyncio.gather(harness.sandbox(), harness.sandbox())
        assert first == second
        assert len(harness.keepers) == 1

    in_runtime(act)


def test_a_call_waits_for_an_earlier_waiting_call() -> None:
    async def act(harness: Harness) -> None:
        async def call_twice() -> str:
            await harness.sandbox(1)
            return await harness.sandbox()  # the other call may continue, but has not yet

        first, second = await asyncio.gather(call_twice(), harness.sandbox())
        assert first == second
        assert len(harness.keepers) == 2

    in_runtime(act)


def test_calls_are_refused_while_the_runtime_closes() -> None:
    async def act(harness: Harness) -> None:
        closing = asyncio.ensure_future(harness.runtime.close())
        await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(RuntimeUnavailable, match=r"^cannot use the process runtime: it is not open$"):
            await harness.sandbox()
        await closing

    in_runtime(act)


# ---- concurrent calls ------------------------------------------------------------------------


def test_a_removed_sandbox_is_not_listed_while_its_files_are_deleted() -> None:
    async def act(harness: Harness) -> None:
        threads = LoopThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        box = await harness.sandbox()
        threads.held.add(shutil.rmtree)
        removal = asyncio.ensure_future(harness.runtime.remove_sandbox(box))
        await asyncio.sleep(5)
        assert (removal.done(), len(harness.sandboxes)) == (False, 1)
        assert await harness.runtime.list_pods() == ()
        threads.release()
        await removal
        assert harness.sandboxes == []

    in_runtime(act)


def test_create_is_refused_if_its_sandbox_is_removed_meanwhile() -> None:
    async def act(harness: Harness) -> None:
        threads = LoopThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        box = await harness.sandbox()
        threads.held.add(request_of)
        creation = asyncio.ensure_future(harness.runtime.create_container(box, config()))
        await harness.runtime.remove_sandbox(box)
        threads.release()
        with pytest.raises(RuntimeUnavailable, match=r"^cannot reach the keeper of pod default/web"):
            await creation

    in_runtime(act)
