"""The runtime port over keepers in the event loop: what keepers are asked, what is refused, what is found again."""

import asyncio
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
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import NotRun
from podkeeper.model.runtime import ContainerState, ImageRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.runtimes.process.household import new_id
from podkeeper.runtimes.process.keeper.files import Json, read_json, write_json
from podkeeper.runtimes.process.keepers import Patience
from podkeeper.runtimes.process.launches import request_of
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.testing.port_calls import Fault, PortCall, PortCalls
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.process.loop_keeper import LoopHatchery, LoopKeeper, LoopThreads

UID = PodUID("uid-web")
POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid=UID), spec=PodSpec())
HOST = ImageRecord(id="host", tags=("host",), pinned=True)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def config(name: str = "app", attempt: int = 0, **more: Any) -> ContainerConfig:
    values: dict[str, Any] = {"image": "host", "container": Container(name=name, image="busybox"), **more}
    return ContainerConfig(pod=POD, attempt=attempt, spec_hash="cafe", command=("true",), **values)


class Scene:
    """A runtime with its directory."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.calls = PortCalls()
        self.keepers: list[LoopKeeper] = []
        self.runtime = self.new_runtime()

    def new_runtime(self, **options: Any) -> ProcessRuntime:
        self.hatchery = LoopHatchery(self.keepers, self.calls)
        return ProcessRuntime(self.root, hatchery=self.hatchery, host_ips=lambda: ("192.0.2.7",), **options)

    @property
    def sandboxes(self) -> list[str]:
        return sorted(os.listdir(f"{self.root}/sandboxes"))

    async def sandbox(self, attempt: int = 0, **more: Any) -> str:
        return await self.runtime.run_sandbox(SandboxConfig(pod=POD, attempt=attempt, **more))

    async def running(self, name: str = "app") -> tuple[str, str]:
        """A sandbox and a container in it that runs."""
        box = await self.sandbox()
        container = await self.runtime.create_container(box, config(name))
        await self.runtime.start_container(container)
        return box, container

    async def restart(self, **options: Any) -> None:
        await self.runtime.close()
        self.runtime = self.new_runtime(**options)
        await self.runtime.open()

    def requests(self, do: str) -> list[Json]:
        """What the newest keeper was asked of a kind, without numbers."""
        asked = [request for request in self.keepers[-1].requests if request["do"] == do]
        return [{key: value for key, value in request.items() if key != "id"} for request in asked]

    async def states(self) -> list[tuple[int, ContainerState]]:
        record = await self.runtime.pod_record(UID)
        return [(each.restart_count, each.state) for each in record.containers]


@asynccontextmanager
async def opened() -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-runtime-", dir=MEMORY) as root:
        scene = Scene(root)
        loop = asyncio.get_running_loop()
        reading, writing = socket.socketpair()
        loop.add_reader(reading.fileno(), lambda: None)  # with a file to wait for, the loop waits for threads too
        try:
            await scene.runtime.open()
            yield scene
        finally:
            await scene.runtime.close()
            for keeper in scene.keepers:
                keeper.die()
            loop.remove_reader(reading.fileno())
            reading.close()
            writing.close()


def in_runtime(act: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with opened() as scene:
            await act(scene)

    simulate(whole())


def test_an_id_is_thirteen_letters_and_digits() -> None:
    ids = {new_id() for _ in range(50)}
    assert len(ids) == 50
    assert {len(each) for each in ids} == {13}
    assert all(each.isalnum() and each == each.lower() for each in ids)


@pytest.mark.parametrize("was_open", [True, False])
def test_a_runtime_that_is_not_open_does_nothing(was_open: bool) -> None:
    async def act(scene: Scene) -> None:
        _, container = await scene.running()
        await scene.runtime.close()
        assert scene.hatchery.closed
        if not was_open:
            scene.runtime = scene.new_runtime()
        runtime = scene.runtime
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: scene.sandbox(),
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


def test_a_sandbox_keeps_what_it_was_made_from() -> None:
    async def act(scene: Scene) -> None:
        box = await scene.sandbox(2, hostname="web", log_directory="/logs", cgroup_parent="/pods")
        facts = read_json(f"{scene.root}/sandboxes/{box}/config.json") or {}
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
        assert os.stat(f"{scene.root}/sandboxes/{box}").st_mode & 0o777 == 0o700
        assert os.stat(f"{scene.root}/sandboxes").st_mode & 0o777 == 0o700

    in_runtime(act)


@pytest.mark.parametrize("field", ["host_network", "host_pid", "host_ipc", "share_process_namespace"])
def test_a_sandbox_keeps_what_its_pod_shares(field: str) -> None:
    async def act(scene: Scene) -> None:
        options: dict[str, Any] = {field: True}
        pod = Pod(metadata=POD.metadata, spec=PodSpec(**options))
        box = await scene.runtime.run_sandbox(SandboxConfig(pod=pod, attempt=0))
        facts = json.loads(Path(scene.root, "sandboxes", box, "config.json").read_text())
        shared = ("host_network", "host_pid", "host_ipc", "share_process_namespace")
        assert [name for name in shared if facts[name]] == [field]

    in_runtime(act)


def test_a_sandbox_of_the_same_attempt_is_adopted_while_it_is_ready() -> None:
    async def act(scene: Scene) -> None:
        box = await scene.sandbox()
        assert await scene.sandbox() == box
        other = await scene.sandbox(1)
        await scene.runtime.stop_sandbox(box)
        assert [(each.id, each.ready) for each in (await scene.runtime.pod_record(UID)).sandboxes] == [
            (other, True),
            (box, False),
        ]
        fresh = await scene.sandbox()
        assert fresh not in (box, other)
        assert scene.sandboxes == sorted((fresh, other))
        await scene.runtime.stop_sandbox("unknown")
        await scene.runtime.remove_sandbox("unknown")

    in_runtime(act)


def test_a_sandbox_is_stopped_by_sending_its_keeper_away() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        (keeper,) = scene.keepers
        await scene.runtime.stop_sandbox(box)
        assert (scene.requests("shutdown"), keeper.alive) == ([{"do": "shutdown"}], False)
        assert await scene.states() == [(0, ContainerState.EXITED)]
        await scene.runtime.stop_sandbox(box)
        assert len(scene.requests("shutdown")) == 1
        await scene.runtime.remove_sandbox(box)
        assert scene.sandboxes == []
        assert await scene.runtime.list_pods() == ()

    in_runtime(act)


# ---- containers ------------------------------------------------------------------------------


def test_a_container_is_asked_for_with_its_facts() -> None:
    async def act(scene: Scene) -> None:
        box = await scene.sandbox()
        made = await scene.runtime.create_container(box, config(attempt=3))
        (request,) = scene.requests("create")
        facts = request["facts"]
        assert facts.pop("created_at") > 10**18
        user = facts.pop("user")
        assert facts == {"name": "app", "attempt": 3, "image": "busybox", "image_id": "host", "spec_hash": "cafe"}
        assert (user is None) == (os.geteuid() != 0)
        assert (request["container"], request["target"]) == (made, "")
        launch = request["launch"]
        assert launch["directory"] == f"{scene.root}/sandboxes/{box}/containers/{made}"
        assert (launch["hidden"], launch["most_processes"], launch["argv"]) == ([scene.root], 0, ["true"])

    in_runtime(act)


@pytest.mark.parametrize(("limit", "most"), [(None, 0), (-1, 0), (100, 100)])
def test_the_options_of_the_runtime_reach_the_launch(limit: int | None, most: int) -> None:
    async def act(scene: Scene) -> None:
        await scene.restart(hidden=["/secret"], pod_pids_limit=limit, host_images=["busy*"])
        box = await scene.sandbox(hostname="web")
        await scene.runtime.create_container(box, config(image="busybox"))
        (request,) = scene.requests("create")
        launch = request["launch"]
        assert (launch["hidden"], launch["most_processes"]) == ([scene.root, "/secret"], most)
        assert launch["hostname"] == "web"

    in_runtime(act)


def test_what_cannot_be_created_is_refused_with_the_reason() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        create = scene.runtime.create_container
        refusals: dict[str, Callable[[], Awaitable[str]]] = {
            "cannot create container app: image nginx is not on the node": lambda: create(box, config(image="nginx")),
            "cannot create container app: sandbox other is not ready": lambda: create("other", config()),
            "cannot create container app: attempt 0 has already started": lambda: create(box, config()),
        }
        for text, call in refusals.items():
            with pytest.raises(RuntimeRefused, match=rf"^{text}$"):
                await call()
        await scene.runtime.stop_sandbox(box)
        with pytest.raises(RuntimeRefused, match=rf"^cannot create container app: sandbox {box} is not ready$"):
            await create(box, config(attempt=1))
        assert len(scene.requests("create")) == 1

    in_runtime(act)


def test_a_container_of_the_same_attempt_that_never_started_is_replaced() -> None:
    async def act(scene: Scene) -> None:
        box = await scene.sandbox()
        first = await scene.runtime.create_container(box, config())
        other = await scene.runtime.create_container(box, config("other"))
        later = await scene.runtime.create_container(box, config(attempt=1))
        second = await scene.runtime.create_container(box, config())
        assert set(scene.keepers[-1].containers) == {other, later, second}
        assert scene.requests("remove") == [{"do": "remove", "container": first}]

    in_runtime(act)


def test_an_ephemeral_container_names_its_target() -> None:
    async def act(scene: Scene) -> None:
        box, container = await scene.running("app")
        await scene.runtime.create_container(box, config("helper"))

        async def debug(name: str, target: str | None) -> str:
            spec = EphemeralContainer(name=name, image="host", target_container_name=target)
            return await scene.runtime.create_container(box, config(container=spec))

        await debug("one", "app")
        await debug("two", None)
        await debug("three", "")
        assert [each["target"] for each in scene.requests("create")][2:] == [container, "", ""]
        for target in ("helper", "nobody"):
            text = f"cannot create container four: its target {target} does not run"
            with pytest.raises(RuntimeRefused, match=rf"^{text}$"):
                await debug("four", target)

    in_runtime(act)


def test_starting_is_refused_where_it_cannot_be() -> None:
    async def act(scene: Scene) -> None:
        box, container = await scene.running()
        await scene.runtime.start_container(container)
        assert len(scene.requests("start")) == 1
        with pytest.raises(RuntimeRefused, match=r"^cannot start container other: there is none$"):
            await scene.runtime.start_container("other")
        created = await scene.runtime.create_container(box, config("late"))
        await scene.runtime.stop_sandbox(box)
        with pytest.raises(RuntimeRefused, match=r"^cannot start container late: its sandbox is not ready$"):
            await scene.runtime.start_container(created)

    in_runtime(act)


@pytest.mark.parametrize(("grace", "asked"), [(30.0, 30.0), (0.0, 0.0), (-5.0, 0.0)])
def test_a_stop_is_asked_for_with_its_grace_and_only_where_something_runs(grace: float, asked: float) -> None:
    async def act(scene: Scene) -> None:
        box, container = await scene.running()
        created = await scene.runtime.create_container(box, config("late"))
        await scene.runtime.stop_container(container, grace)
        for other in (container, created, "unknown"):
            await scene.runtime.stop_container(other, grace)
        assert scene.requests("stop") == [{"do": "stop", "container": container, "grace": asked}]

    in_runtime(act)


def test_a_container_that_its_keeper_no_longer_has_is_stopped() -> None:
    async def act(scene: Scene) -> None:
        _, container = await scene.running()
        scene.keepers[0].containers.clear()
        await scene.runtime.stop_container(container, 30)
        assert len(scene.requests("stop")) == 1

    in_runtime(act)


def test_sparing_is_asked_of_every_keeper_that_is_ready() -> None:
    async def act(scene: Scene) -> None:
        first = await scene.sandbox()
        await scene.sandbox(1)
        await scene.sandbox(2)
        await scene.runtime.stop_sandbox(first)
        scene.keepers[1].mute = True
        before = asyncio.get_running_loop().time()
        await scene.runtime.spare_all()
        assert asyncio.get_running_loop().time() - before == 2
        spared = [[request["do"] for request in keeper.requests].count("spare") for keeper in scene.keepers]
        assert spared == [0, 0, 1]

    in_runtime(act)


def test_a_removed_container_is_gone_whatever_became_of_its_keeper() -> None:
    async def act(scene: Scene) -> None:
        box, container = await scene.running()
        other = await scene.runtime.create_container(box, config("other"))
        await scene.runtime.remove_container(other)
        await scene.runtime.remove_container(other)
        assert scene.requests("remove") == [{"do": "remove", "container": other}]
        await scene.runtime.stop_sandbox(box)
        home = Path(scene.root, "sandboxes", box, "containers", container)
        assert (home / "config.json").exists()
        await scene.runtime.remove_container(container)
        assert (await scene.runtime.pod_record(UID)).containers == ()
        await scene.restart()
        assert (await scene.runtime.pod_record(UID)).containers == ()
        assert [each.id for each in (await scene.runtime.pod_record(UID)).sandboxes] == [box]

    in_runtime(act)


def test_what_needs_a_running_container_is_refused_without_one() -> None:
    async def act(scene: Scene) -> None:
        box = await scene.sandbox()
        created = await scene.runtime.create_container(box, config())
        runtime = scene.runtime
        calls: dict[str, Callable[[str], Awaitable[object]]] = {
            "run a command in": lambda each: runtime.exec_stream(each, ["true"], tty=False, stdin=False),
            "attach to": runtime.attach,
            "reopen the log of": runtime.reopen_log,
        }
        for purpose, call in calls.items():
            with pytest.raises(RuntimeRefused, match=rf"^cannot {purpose} container other: there is none$"):
                await call("other")
            with pytest.raises(RuntimeRefused, match=rf"^cannot {purpose} container app: it does not run$"):
                await call(created)
        assert await runtime.exec_sync(created, ["true"], 1) == NotRun(
            "cannot run a command in container app: it does not run"
        )
        await runtime.start_container(created)
        await runtime.reopen_log(created)
        assert scene.requests("reopen_log") == [{"do": "reopen_log", "container": created}]
        scene.keepers[0].mute = True
        scene.keepers[0].hang_up()
        await asyncio.sleep(2.1)
        text = "cannot attach to container app: its keeper does not answer"
        with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
            await runtime.attach(created)

    in_runtime(act)


def test_a_question_for_health_starts_a_nursery_that_died() -> None:
    async def act(scene: Scene) -> None:
        before = scene.hatchery.starts
        assert await scene.runtime.health() == RuntimeHealth()
        assert scene.hatchery.starts == before + 1
        assert await scene.runtime.isolation() is None

    in_runtime(act)


def test_a_container_without_an_image_has_an_empty_name_for_it() -> None:
    async def act(scene: Scene) -> None:
        box = await scene.sandbox()
        await scene.runtime.create_container(box, config(container=Container(name="app")))
        assert (await scene.runtime.pod_record(UID)).containers[0].image == ""

    in_runtime(act)


def test_silent_keepers_are_tried_less_and_less_often() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        address = Path(scene.root, "sandboxes", box, "keeper.sock")
        elsewhere = address.rename(address.with_name("elsewhere"))
        (keeper,) = scene.keepers
        keeper.hang_up()
        # Each try takes 1.88 s; the pauses between them are 0.2, 0.5, 1, 2, 5 and 5 s.
        seventh = 6 * 1.88 + 0.2 + 0.5 + 1 + 2 + 5 + 5
        await asyncio.sleep(0.5)
        assert await scene.runtime.health() == RuntimeHealth()  # the first try is not over
        await asyncio.sleep(seventh - 0.6)
        elsewhere.rename(address)
        asked = len(keeper.requests)
        assert await scene.runtime.health() != RuntimeHealth()
        await asyncio.sleep(0.2)
        assert (len(keeper.requests), await scene.runtime.health()) == (asked + 1, RuntimeHealth())

    in_runtime(act)


def test_images_are_the_hosts_files() -> None:
    async def act(scene: Scene) -> None:
        runtime = scene.runtime
        assert (await runtime.image("host"), await runtime.image("nginx")) == (HOST, None)
        assert await runtime.pull_image("host") == HOST
        with pytest.raises(ImagePullFailed):
            await runtime.pull_image("nginx")
        assert (await runtime.list_images(), await runtime.image_usage()) == ((HOST,), None)
        await runtime.remove_image("host")
        assert await runtime.image("host") == HOST

    in_runtime(act)


def test_what_is_made_next_is_younger_whatever_the_clock_says() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        await scene.runtime.close()
        path = f"{scene.root}/sandboxes/{box}/config.json"
        future = 4 * 10**18
        write_json(path, {**(read_json(path) or {}), "created_at": future})
        await scene.restart()
        await scene.runtime.create_container(box, config("next"))
        assert scene.requests("create")[1]["facts"]["created_at"] == future + 1000
        await scene.sandbox(1)
        newest = (await scene.runtime.pod_record(UID)).sandboxes[0]
        facts = read_json(f"{scene.root}/sandboxes/{newest.id}/config.json") or {}
        assert facts["created_at"] == future + 2000

    in_runtime(act)


# ---- finding and losing keepers --------------------------------------------------------------


def test_only_one_agent_works_in_a_directory() -> None:
    async def act(scene: Scene) -> None:
        with pytest.raises(BadInput) as caught:
            await scene.new_runtime().open()
        text = "another agent works there; stop it, or give this one a directory of its own"
        assert f"cannot use {scene.root}: {text}" in str(caught.value)
        await scene.restart()

    in_runtime(act)


def test_an_agent_finds_its_pods_again_and_deletes_what_is_none() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        gone = await scene.sandbox(1)
        stopped = await scene.sandbox(2)
        await scene.runtime.stop_sandbox(stopped)
        await scene.runtime.close()
        scene.keepers[1].die()
        home = Path(scene.root, "sandboxes")
        for name in ("rubbish", "renamed", "unborn", ".gone-a", ".gone-b"):
            (home / name).mkdir()
        shutil.copy(home / box / "config.json", home / "renamed")
        write_json(
            str(home / "unborn" / "config.json"), {**(read_json(str(home / box / "config.json")) or {}), "id": "unborn"}
        )
        write_json(str(home / ".gone-b" / "stopped.json"), {})
        await scene.restart()
        await asyncio.sleep(1)
        record = await scene.runtime.pod_record(UID)
        assert [(each.id, each.ready) for each in record.sandboxes] == [(stopped, False), (gone, False), (box, True)]
        assert await scene.states() == [(0, ContainerState.RUNNING)]
        assert await scene.runtime.list_pods() == (record,)
        while set(scene.sandboxes) != {box, gone, stopped}:
            await asyncio.sleep(0.01)
        # What a keeper left as it was told to needs no powers to delete: .gone-b.
        names = sorted(name.removeprefix(".gone-").split("-")[0] for name in scene.hatchery.cleared)
        assert names == ["a", "renamed", "rubbish", "unborn"]

    in_runtime(act)


def test_a_sandbox_that_is_found_again_is_no_news() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        await scene.runtime.close()
        scene.runtime = scene.new_runtime()
        stream = scene.runtime.events()
        await scene.runtime.open()
        scene.keepers[0].exit(3)
        found: list[RuntimeEvent] = []
        while not found or found[-1].type != "stopped":
            found.append(await anext(stream))
        assert box not in {event.container_id for event in found}

    in_runtime(act)


@pytest.mark.parametrize("how", ["silent", "dead"])
def test_a_pod_whose_keeper_says_nothing_at_the_start_is_no_news(how: str) -> None:
    async def act(scene: Scene) -> None:
        _, container = await scene.running()
        await scene.runtime.close()
        (keeper,) = scene.keepers
        keeper.mute = True
        if how == "dead":
            keeper.die()
        scene.runtime = scene.new_runtime()
        stream = scene.runtime.events()
        await scene.runtime.open()
        listening = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(3)
        assert not listening.done()
        listening.cancel()
        (record,) = (await scene.runtime.pod_record(UID)).containers
        expected = ContainerState.RUNNING if how == "silent" else ContainerState.EXITED
        assert (record.id, record.state) == (container, expected)

    in_runtime(act)


@pytest.mark.parametrize("at_start", [False, True])
def test_a_keeper_that_is_silent_is_named_at_once_and_not_ready_after_a_minute(at_start: bool) -> None:
    async def act(scene: Scene) -> None:
        await scene.running()
        (keeper,) = scene.keepers
        keeper.mute = True
        began = asyncio.get_running_loop().time()
        if at_start:
            await scene.restart(patience=Patience())
        else:
            keeper.hang_up()
        await asyncio.sleep(5)
        assert await scene.runtime.health() == RuntimeHealth(message="keepers that do not answer: default/web")
        assert await scene.states() == [(0, ContainerState.RUNNING)]

        async def ready() -> bool:
            return (await scene.runtime.pod_record(UID)).sandboxes[0].ready

        while await ready():
            await asyncio.sleep(0.5)
        assert 60 <= asyncio.get_running_loop().time() - began <= 72
        keeper.mute = False
        await asyncio.sleep(10)
        assert (await ready(), await scene.runtime.health()) == (True, RuntimeHealth())

    in_runtime(act)


def test_a_keeper_that_dies_takes_its_containers_with_it() -> None:
    async def act(scene: Scene) -> None:
        _, container = await scene.running()
        scene.keepers[0].die()
        while (await scene.runtime.pod_record(UID)).sandboxes[0].ready:
            await asyncio.sleep(0.01)
        (record,) = (await scene.runtime.pod_record(UID)).containers
        assert (record.id, record.state, record.exit_code) == (container, ContainerState.EXITED, 137)
        assert await scene.runtime.health() == RuntimeHealth()

    in_runtime(act)


def test_a_sandbox_whose_keeper_leaves_is_not_ready_after_a_new_connection() -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        (keeper,) = scene.keepers
        keeper.leaving = True
        keeper.hang_up()
        await asyncio.sleep(1)
        assert scene.requests("state") == [{"do": "state"}]
        assert [each.ready for each in (await scene.runtime.pod_record(UID)).sandboxes] == [False]
        assert await scene.sandbox() != box

    in_runtime(act)


# ---- keepers that cannot be made, or do not go -----------------------------------------------


def test_a_keeper_that_cannot_be_made_leaves_nothing() -> None:
    async def act(scene: Scene) -> None:
        scene.calls.arm(Fault(PortCall("hatchery", "hatch", 0), RuntimeUnavailable))
        with pytest.raises(RuntimeUnavailable, match=r"^cannot hatch: a fault was injected$"):
            await scene.sandbox()
        assert await scene.runtime.list_pods() == ()
        await asyncio.sleep(1)
        assert scene.sandboxes == []
        assert await scene.sandbox() in scene.sandboxes

    in_runtime(act)


def test_a_keeper_that_nobody_waits_for_any_more_is_ended_as_soon_as_it_can_be() -> None:
    async def act(scene: Scene) -> None:
        making = asyncio.ensure_future(scene.sandbox())
        while not scene.keepers:
            await asyncio.sleep(0)
        (keeper,) = scene.keepers
        keeper.mute = True  # it does not notice that its connection was closed
        making.cancel()
        await asyncio.sleep(10)
        assert len(scene.sandboxes) == 1
        keeper.die()
        await asyncio.sleep(10)
        assert scene.sandboxes == []

    in_runtime(act)


@pytest.mark.parametrize("how", ["never made", "removed"])
def test_files_that_cannot_be_deleted_are_deleted_by_the_next_agent(how: str) -> None:
    async def act(scene: Scene) -> None:
        scene.calls.arm(Fault(PortCall("hatchery", "clear", 0), RuntimeUnavailable))
        if how == "removed":
            box = await scene.sandbox()
            scene.keepers[0].die()
            await scene.runtime.remove_sandbox(box)
        else:
            scene.calls.arm(Fault(PortCall("hatchery", "hatch", 0), RuntimeUnavailable))
            with pytest.raises(RuntimeUnavailable):
                await scene.sandbox()
        await asyncio.sleep(1)
        assert await scene.runtime.list_pods() == ()
        (left,) = scene.sandboxes
        assert left.startswith(".gone-")
        await scene.restart()
        await asyncio.sleep(1)
        assert scene.sandboxes == []

    in_runtime(act)


def seconds_of(work: Awaitable[object]) -> Awaitable[float]:
    async def measured() -> float:
        began = asyncio.get_running_loop().time()
        await work
        return asyncio.get_running_loop().time() - began

    return measured()


def test_a_keeper_that_does_not_go_is_given_time_and_then_ended() -> None:
    async def act(scene: Scene) -> None:
        box, container = await scene.running()
        (keeper,) = scene.keepers
        keeper.mute = True
        # Its process does not exist, so nothing can be killed: it dies by itself while that is tried.
        asyncio.get_running_loop().call_later(1 + 45 + 2 + 0.5, keeper.die)
        assert await seconds_of(scene.runtime.stop_sandbox(box)) == pytest.approx(48.887)
        record = await scene.runtime.pod_record(UID)
        assert [each.ready for each in record.sandboxes] == [False]
        assert [(each.id, each.exit_code) for each in record.containers] == [(container, 137)]

    in_runtime(act)


@pytest.mark.parametrize("answers", [False, True])
def test_a_keeper_that_cannot_be_ended_is_reported_and_stays(answers: bool) -> None:
    async def act(scene: Scene) -> None:
        box, _ = await scene.running()
        scene.keepers[0].mute, scene.keepers[0].stays = not answers, answers
        text = r"^cannot end the keeper of pod default/web, process \d+: it does not die$"
        with pytest.raises(RuntimeUnavailable, match=text):
            await scene.runtime.remove_sandbox(box)
        assert [each.id for each in (await scene.runtime.pod_record(UID)).sandboxes] == [box]
        assert scene.sandboxes == [box]

    in_runtime(act)


@pytest.mark.parametrize("then", ["comes back", "dies", "stays away"])
def test_an_end_waits_for_a_keeper_that_cannot_be_reached(then: str) -> None:
    async def act(scene: Scene) -> None:
        box, container = await scene.running()
        (keeper,) = scene.keepers
        address = Path(scene.root, "sandboxes", box, "keeper.sock")
        elsewhere = address.rename(address.with_name("elsewhere"))
        keeper.hang_up()
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(LoopThreads())
        if then == "stays away":
            began = loop.time()
            with pytest.raises(RuntimeUnavailable, match=r"^cannot end the keeper"):
                await scene.runtime.stop_container(container, 5)
            assert loop.time() - began == pytest.approx(45 + 2 * 1.887)
            return
        loop.call_later(20, lambda: elsewhere.rename(address) if then == "comes back" else keeper.die())
        seconds = await seconds_of(scene.runtime.stop_container(container, 5))
        assert 19 < seconds < 28
        assert await scene.states() == [(0, ContainerState.EXITED)]
        asked = [{"do": "stop", "container": container, "grace": 5.0}] if then == "comes back" else []
        assert scene.requests("stop") == asked

    in_runtime(act)


def test_a_pod_is_made_one_step_at_a_time() -> None:
    async def act(scene: Scene) -> None:
        first, second = await asyncio.gather(scene.sandbox(), scene.sandbox())
        assert first == second
        assert len(scene.keepers) == 1

    in_runtime(act)


def test_a_call_waits_for_one_that_waited_before_it() -> None:
    async def act(scene: Scene) -> None:
        async def call_twice() -> str:
            await scene.sandbox(1)
            return await scene.sandbox()  # the other call may go on, and has not yet done so

        first, second = await asyncio.gather(call_twice(), scene.sandbox())
        assert first == second
        assert len(scene.keepers) == 2

    in_runtime(act)


def test_calls_are_refused_while_the_runtime_closes() -> None:
    async def act(scene: Scene) -> None:
        closing = asyncio.ensure_future(scene.runtime.close())
        await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(RuntimeUnavailable, match=r"^cannot use the process runtime: it is not open$"):
            await scene.sandbox()
        await closing

    in_runtime(act)


# ---- calls at the same time ------------------------------------------------------------------


def test_a_sandbox_that_is_removed_is_gone_while_its_files_are_being_deleted() -> None:
    async def act(scene: Scene) -> None:
        threads = LoopThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        box = await scene.sandbox()
        threads.held.add(shutil.rmtree)
        removal = asyncio.ensure_future(scene.runtime.remove_sandbox(box))
        await asyncio.sleep(5)
        assert (removal.done(), len(scene.sandboxes)) == (False, 1)
        assert await scene.runtime.list_pods() == ()
        threads.release()
        await removal
        assert scene.sandboxes == []

    in_runtime(act)


def test_a_container_is_refused_when_its_sandbox_is_removed_while_it_is_prepared() -> None:
    async def act(scene: Scene) -> None:
        threads = LoopThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        box = await scene.sandbox()
        threads.held.add(request_of)
        creation = asyncio.ensure_future(scene.runtime.create_container(box, config()))
        await scene.runtime.remove_sandbox(box)
        threads.release()
        with pytest.raises(RuntimeUnavailable, match=r"^cannot ask the keeper of pod default/web"):
            await creation

    in_runtime(act)
