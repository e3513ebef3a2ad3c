"""What every runtime promises.

Containers are described twice: by a command, for runtimes that run something, and by an annotation, for the fake. Both
say the same, so that one scenario fits all.
"""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path

from podkeeper.model.errors import ImagePullFailed, TryLater
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import Exited, NotRun, TimedOut
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType, SandboxConfig
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.naming import container_log_path, pod_log_directory
from podkeeper.testing.contracts.contract import PATIENCE_SECONDS, Contract, eventually, raises

RUNTIME: "Contract[RuntimeSubject]" = Contract()

# Its shell listens: a first process of a pid namespace that does not say so is not reached by TERM.
LIVES = (
    "live",
    ("sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"),
    '{"exec": [{"exit_code": 4, "output": "hello\\n"}]}',
)
EXITS = ("exit", ("sh", "-c", "exit 3"), '{"exit_code": 3, "after_seconds": 0.1}')
STUBBORN = ("stubborn", ("sh", "-c", "trap '' TERM; while :; do sleep 1; done"), '{"term_seconds": null}')
SLOW = ("slow", ("sleep", "3600"), '{"exec": [{"takes_seconds": 30}]}')


@dataclass(frozen=True)
class RuntimeSubject:
    """A runtime, an image that has `sh` and `sleep` and can be pulled, and one that nobody can pull."""

    runtime: Runtime
    image: str
    missing_image: str = "podkeeper.invalid/missing:1"
    settle_seconds: float = 0.2  # until a started shell has set its traps
    log_root: str = ""  # where logs are to be written; empty: it writes none


class _Scene:
    """One pod in a runtime."""

    def __init__(self, subject: RuntimeSubject) -> None:
        self.runtime = subject.runtime
        self.image = subject.image
        self.settle_seconds = subject.settle_seconds
        self.log_root = subject.log_root
        kinds = (LIVES, EXITS, STUBBORN, SLOW)
        containers = tuple(Container(name=name, image=self.image, command=command) for name, command, _ in kinds)
        annotations = {f"fake.podkeeper.io/{name}": behaviour for name, _, behaviour in kinds}
        self.uid = PodUID(str(uuid.uuid4()))
        self.pod = Pod(
            metadata=ObjectMeta(name=f"p{self.uid[:8]}", namespace="default", uid=self.uid, annotations=annotations),
            spec=PodSpec(containers=containers),
        )

    async def sandbox(self, attempt: int = 0) -> str:
        directory = pod_log_directory(self.log_root, self.pod) if self.log_root else ""
        return await self.runtime.run_sandbox(SandboxConfig(pod=self.pod, attempt=attempt, log_directory=directory))

    async def create(self, sandbox_id: str, name: str, attempt: int = 0) -> str:
        image = await self.runtime.pull_image(self.image)
        container = next(it for it in self.pod.spec.containers if it.name == name)
        config = ContainerConfig(
            pod=self.pod,
            container=container,
            attempt=attempt,
            image=image.id,
            spec_hash="5ca1ab1e",
            command=tuple(container.command or ()),
            log_path=container_log_path(name, attempt) if self.log_root else "",
        )
        return await self.runtime.create_container(sandbox_id, config)

    async def start(self, name: str = "live") -> tuple[str, str]:
        """Sandbox and container, running."""
        sandbox_id = await self.sandbox()
        container_id = await self.create(sandbox_id, name)
        await self.runtime.start_container(container_id)
        return sandbox_id, container_id

    async def record(self) -> PodRecord:
        return await self.runtime.pod_record(self.uid)

    async def container(self, container_id: str) -> ContainerRecord:
        return next(it for it in (await self.record()).containers if it.id == container_id)

    async def exited(self, container_id: str) -> ContainerRecord:
        """The container, once it has exited."""

        async def holds() -> bool:
            return (await self.container(container_id)).state is ContainerState.EXITED

        await eventually(holds, f"container {container_id} exited")
        return await self.container(container_id)


@RUNTIME.promises
async def a_sandbox_is_ready_once_it_is_made(subject: RuntimeSubject) -> None:
    """`run_sandbox` returns the id of a sandbox that is ready, and the pod is known by it."""
    scene = _Scene(subject)
    sandbox_id = await scene.sandbox(attempt=2)
    record = await scene.record()
    assert [(it.id, it.ready, it.attempt) for it in record.sandboxes] == [(sandbox_id, True, 2)]
    assert (record.uid, record.name, record.namespace) == (scene.uid, scene.pod.metadata.name, "default")
    assert scene.uid in [it.uid for it in await scene.runtime.list_pods()]


@RUNTIME.promises
async def a_second_try_of_a_sandbox_leaves_one(subject: RuntimeSubject) -> None:
    """A sandbox that an earlier try with the same pod and attempt made is adopted, or made anew: one stays."""
    scene = _Scene(subject)
    await scene.sandbox()
    again = await scene.sandbox()
    assert [(it.id, it.ready) for it in (await scene.record()).sandboxes] == [(again, True)]
    await scene.runtime.stop_sandbox(again)
    anew = await scene.sandbox()
    assert [(it.id, it.ready) for it in (await scene.record()).sandboxes] == [(anew, True)]


@RUNTIME.promises
async def the_newest_sandbox_comes_first(subject: RuntimeSubject) -> None:
    """A pod's sandboxes are told newest first, and stopped ones stay until they are removed."""
    scene = _Scene(subject)
    old = await scene.sandbox(0)
    await scene.runtime.stop_sandbox(old)
    new = await scene.sandbox(1)
    assert [(it.id, it.ready) for it in (await scene.record()).sandboxes] == [(new, True), (old, False)]


@RUNTIME.promises
async def a_stopped_sandbox_has_nothing_running(subject: RuntimeSubject) -> None:
    """`stop_sandbox` stops by force whatever still runs in it, and may be asked again."""
    scene = _Scene(subject)
    sandbox_id, container_id = await scene.start("stubborn")
    await scene.runtime.stop_sandbox(sandbox_id)
    await scene.runtime.stop_sandbox(sandbox_id)
    record = await scene.record()
    assert [it.ready for it in record.sandboxes] == [False]
    assert record.ips == ()
    assert [(it.id, it.state) for it in record.containers] == [(container_id, ContainerState.EXITED)]


@RUNTIME.promises
async def a_removed_sandbox_takes_all_with_it(subject: RuntimeSubject) -> None:
    """`remove_sandbox` removes the sandbox and its containers, running or not; nothing of the pod is left."""
    scene = _Scene(subject)
    sandbox_id, _ = await scene.start()
    await scene.create(sandbox_id, "exit")
    await scene.runtime.remove_sandbox(sandbox_id)
    await scene.runtime.remove_sandbox(sandbox_id)
    assert await scene.record() == PodRecord(uid=scene.uid)
    assert scene.uid not in [it.uid for it in await scene.runtime.list_pods()]


@RUNTIME.promises
async def the_unknown_is_gone(subject: RuntimeSubject) -> None:
    """Stopping and removing what the runtime does not know succeeds."""
    runtime = subject.runtime
    await runtime.stop_container("no-such-container", 1)
    await runtime.remove_container("no-such-container")
    await runtime.stop_sandbox("no-such-sandbox")
    await runtime.remove_sandbox("no-such-sandbox")
    await runtime.remove_image("podkeeper.invalid/unknown:1")


@RUNTIME.promises
async def an_unknown_pod_is_an_empty_record(subject: RuntimeSubject) -> None:
    """`pod_record` of a pod the runtime has nothing of is an empty record, not an error."""
    uid = PodUID(str(uuid.uuid4()))
    assert await subject.runtime.pod_record(uid) == PodRecord(uid=uid)


@RUNTIME.promises
async def a_created_container_does_not_run(subject: RuntimeSubject) -> None:
    """`create_container` only creates; the record tells name, attempt, sandbox and the hash it was made with."""
    scene = _Scene(subject)
    sandbox_id = await scene.sandbox()
    container_id = await scene.create(sandbox_id, "live", attempt=5)
    record = await scene.container(container_id)
    assert record.state is ContainerState.CREATED
    assert (record.name, record.restart_count, record.sandbox_id) == ("live", 5, sandbox_id)
    assert record.spec_hash == "5ca1ab1e"
    assert record.created_at is not None
    assert record.started_at is None


@RUNTIME.promises
async def nothing_is_created_in_an_unknown_sandbox(subject: RuntimeSubject) -> None:
    """`create_container` in a sandbox there is not raises TryLater."""
    scene = _Scene(subject)
    with raises(TryLater):
        await scene.create("no-such-sandbox", "live")


@RUNTIME.promises
async def what_an_earlier_try_left_behind_is_cleaned_up(subject: RuntimeSubject) -> None:
    """A container that an earlier try with the same pod, name and attempt left behind gives way to the new one."""
    scene = _Scene(subject)
    sandbox_id = await scene.sandbox()
    await scene.create(sandbox_id, "live")
    container_id = await scene.create(sandbox_id, "live")
    assert [it.id for it in (await scene.record()).containers] == [container_id]
    await scene.runtime.start_container(container_id)
    assert (await scene.container(container_id)).state is ContainerState.RUNNING


@RUNTIME.promises
async def an_attempt_that_has_started_is_not_created_again(subject: RuntimeSubject) -> None:
    """`create_container` raises TryLater for an attempt that runs or has exited, and leaves that one as it is."""
    scene = _Scene(subject)
    sandbox_id, running = await scene.start("live")
    exited = await scene.create(sandbox_id, "exit")
    await scene.runtime.start_container(exited)
    await scene.exited(exited)
    for name in ("live", "exit"):
        with raises(TryLater):
            await scene.create(sandbox_id, name)
    states = {it.id: it.state for it in (await scene.record()).containers}
    assert states == {running: ContainerState.RUNNING, exited: ContainerState.EXITED}


@RUNTIME.promises
async def a_started_container_runs(subject: RuntimeSubject) -> None:
    """`start_container` returns once the container runs; starting it again changes nothing."""
    scene = _Scene(subject)
    _, container_id = await scene.start()
    first = await scene.container(container_id)
    await scene.runtime.start_container(container_id)
    second = await scene.container(container_id)
    assert (first.state, second.state) == (ContainerState.RUNNING, ContainerState.RUNNING)
    assert first.started_at is not None
    assert first.started_at == second.started_at


@RUNTIME.promises
async def an_unknown_container_cannot_be_started(subject: RuntimeSubject) -> None:
    """`start_container` of a container there is not raises TryLater."""
    with raises(TryLater):
        await subject.runtime.start_container("no-such-container")


@RUNTIME.promises
async def an_exit_code_is_kept(subject: RuntimeSubject) -> None:
    """A container that has exited tells its code and times until it is removed, also after another stop."""
    scene = _Scene(subject)
    _, container_id = await scene.start("exit")
    record = await scene.exited(container_id)
    assert record.exit_code == 3
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.started_at <= record.finished_at
    await scene.runtime.stop_container(container_id, 5)
    assert await scene.container(container_id) == record


@RUNTIME.promises
async def a_stopped_container_has_exited(subject: RuntimeSubject) -> None:
    """`stop_container` asks, and returns once the container has exited, well before the grace is over."""
    scene = _Scene(subject)
    _, container_id = await scene.start("exit")
    _, container_id = await scene.start("live")
    await asyncio.sleep(scene.settle_seconds)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await scene.runtime.stop_container(container_id, PATIENCE_SECONDS)
    record = await scene.container(container_id)
    assert record.state is ContainerState.EXITED
    assert record.finished_at is not None
    assert loop.time() - begun < PATIENCE_SECONDS


@RUNTIME.promises
async def whoever_does_not_listen_is_forced(subject: RuntimeSubject) -> None:
    """A container that ignores the request is killed when the grace is over: exit code 137."""
    scene = _Scene(subject)
    _, container_id = await scene.start("stubborn")
    await asyncio.sleep(scene.settle_seconds)
    begun = asyncio.get_running_loop().time()
    await scene.runtime.stop_container(container_id, 1)
    assert asyncio.get_running_loop().time() - begun >= 1
    record = await scene.container(container_id)
    assert (record.state, record.exit_code) == (ContainerState.EXITED, 137)


@RUNTIME.promises
async def no_grace_is_force_at_once(subject: RuntimeSubject) -> None:
    """Stopping with grace 0 kills: exit code 137."""
    scene = _Scene(subject)
    _, container_id = await scene.start("stubborn")
    await scene.runtime.stop_container(container_id, 0)
    record = await scene.container(container_id)
    assert (record.state, record.exit_code) == (ContainerState.EXITED, 137)


@RUNTIME.promises
async def a_later_stop_can_shorten_the_grace(subject: RuntimeSubject) -> None:
    """A stop with a short grace ends a container that another stop is still patient with; both return."""
    scene = _Scene(subject)
    _, container_id = await scene.start("stubborn")
    await asyncio.sleep(scene.settle_seconds)
    begun = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.runtime.stop_container(container_id, PATIENCE_SECONDS))
        await asyncio.sleep(0.5)
        await scene.runtime.stop_container(container_id, 1)
    assert asyncio.get_running_loop().time() - begun < PATIENCE_SECONDS
    assert (await scene.container(container_id)).state is ContainerState.EXITED


@RUNTIME.promises
async def a_removed_container_is_gone(subject: RuntimeSubject) -> None:
    """`remove_container` removes a container, by force if it runs, and may be asked again."""
    scene = _Scene(subject)
    _, container_id = await scene.start("stubborn")
    await scene.runtime.remove_container(container_id)
    await scene.runtime.remove_container(container_id)
    record = await scene.record()
    assert record.containers == ()
    assert [it.ready for it in record.sandboxes] == [True]


@RUNTIME.promises
async def the_newest_container_comes_first(subject: RuntimeSubject) -> None:
    """A pod's containers are told newest first, each attempt under its own id."""
    scene = _Scene(subject)
    sandbox_id, first = await scene.start("exit")
    await scene.exited(first)
    second = await scene.create(sandbox_id, "exit", attempt=1)
    await scene.runtime.start_container(second)
    await scene.exited(second)
    assert [(it.id, it.restart_count) for it in (await scene.record()).containers] == [(second, 1), (first, 0)]


@RUNTIME.promises
async def the_list_tells_the_same_states(subject: RuntimeSubject) -> None:
    """`list_pods` tells the ids and states that `pod_record` tells."""
    scene = _Scene(subject)
    _, container_id = await scene.start("exit")
    await scene.exited(container_id)
    await scene.start("live")
    record = await scene.record()
    listed = next(it for it in await scene.runtime.list_pods() if it.uid == scene.uid)
    assert {(it.id, it.ready) for it in listed.sandboxes} == {(it.id, it.ready) for it in record.sandboxes}
    assert {(it.id, it.state) for it in listed.containers} == {(it.id, it.state) for it in record.containers}


@RUNTIME.promises
async def a_pulled_image_is_known_by_name_and_id(subject: RuntimeSubject) -> None:
    """After `pull_image` the node has the image under its name and its id; pulling it again changes nothing."""
    runtime = subject.runtime
    pulled = await runtime.pull_image(subject.image)
    assert (await runtime.pull_image(subject.image)).id == pulled.id
    for reference in (subject.image, pulled.id):
        found = await runtime.image(reference)
        assert found is not None
        assert found.id == pulled.id
    assert [it.id for it in await runtime.list_images()].count(pulled.id) == 1


@RUNTIME.promises
async def the_disk_of_images_is_told_as_it_is(subject: RuntimeSubject) -> None:
    """`image_usage` names the file system that images lie on, or says that they take no space."""
    usage = await subject.runtime.image_usage()
    if usage is not None:
        assert usage.mountpoint.startswith("/")
        assert 0 <= usage.available_bytes <= usage.capacity_bytes > 0
        assert usage.used_bytes >= 0


@RUNTIME.promises
async def an_image_nobody_has_cannot_be_pulled(subject: RuntimeSubject) -> None:
    """`pull_image` raises ImagePullFailed, and `image` tells that the node does not have it."""
    assert await subject.runtime.image(subject.missing_image) is None
    with raises(ImagePullFailed):
        await subject.runtime.pull_image(subject.missing_image)
    assert await subject.runtime.image(subject.missing_image) is None


@RUNTIME.promises
async def news_reaches_every_listener(subject: RuntimeSubject) -> None:
    """Everyone who asked for news before it happened learns that a container started and stopped."""
    scene = _Scene(subject)
    streams = (subject.runtime.events(), subject.runtime.events())
    _, container_id = await scene.start("exit")
    async with asyncio.timeout(PATIENCE_SECONDS):
        for stream in streams:
            seen = []
            async for event in stream:
                if event.container_id == container_id:
                    assert event.uid == scene.uid
                    seen.append(event.type)
                    if event.type is RuntimeEventType.STOPPED:
                        break
            assert RuntimeEventType.STARTED in seen


@RUNTIME.promises
async def a_command_tells_its_exit_code_and_output(subject: RuntimeSubject) -> None:
    """`exec_sync` runs a command in a container and tells how it ended."""
    scene = _Scene(subject)
    _, container_id = await scene.start("live")
    end = await scene.runtime.exec_sync(container_id, ["sh", "-c", "echo hello; exit 4"], 10)
    assert end == Exited(4, b"hello\n")


@RUNTIME.promises
async def a_command_that_takes_too_long_is_cut_off(subject: RuntimeSubject) -> None:
    """`exec_sync` waits no longer than its timeout."""
    scene = _Scene(subject)
    _, container_id = await scene.start("slow")
    begun = asyncio.get_running_loop().time()
    assert isinstance(await scene.runtime.exec_sync(container_id, ["sleep", "30"], 1), TimedOut)
    assert asyncio.get_running_loop().time() - begun < 20


@RUNTIME.promises
async def no_command_runs_where_nothing_runs(subject: RuntimeSubject) -> None:
    """`exec_sync` in a container that has exited, or that there never was, says so and does not raise."""
    scene = _Scene(subject)
    _, container_id = await scene.start("exit")
    await scene.exited(container_id)
    assert isinstance(await scene.runtime.exec_sync(container_id, ["true"], 5), NotRun)
    assert isinstance(await scene.runtime.exec_sync("no-such-container", ["true"], 5), NotRun)


@RUNTIME.promises
async def a_log_goes_on_in_a_new_file(subject: RuntimeSubject) -> None:
    """`reopen_log` makes a file in the place of one that was moved away, and may be asked at any time."""
    scene = _Scene(subject)
    _, container_id = await scene.start("live")
    await scene.runtime.reopen_log(container_id)
    if scene.log_root:
        path = Path(pod_log_directory(scene.log_root, scene.pod), container_log_path("live", 0))
        moved = path.rename(path.with_name("moved"))
        await scene.runtime.reopen_log(container_id)
        assert not path.samefile(moved)
    assert (await scene.container(container_id)).state is ContainerState.RUNNING


@RUNTIME.promises
async def no_log_goes_on_where_nothing_runs(subject: RuntimeSubject) -> None:
    """`reopen_log` of a container that has exited, or that there never was, raises TryLater."""
    scene = _Scene(subject)
    _, container_id = await scene.start("exit")
    await scene.exited(container_id)
    for each in (container_id, "no-such-container"):
        with raises(TryLater):
            await scene.runtime.reopen_log(each)


@RUNTIME.promises
async def one_slow_stop_delays_nobody(subject: RuntimeSubject) -> None:
    """While one container is being stopped, others start."""
    slow, quick = _Scene(subject), _Scene(subject)
    _, container_id = await slow.start("stubborn")
    await asyncio.sleep(slow.settle_seconds)
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(slow.runtime.stop_container(container_id, 5))
        _, other = await quick.start("live")
        assert (await quick.container(other)).state is ContainerState.RUNNING
        assert not stopping.done()


@RUNTIME.promises
async def it_is_well(subject: RuntimeSubject) -> None:
    """`health` tells that the runtime and its network are ready."""
    health = await subject.runtime.health()
    assert (health.runtime_ready, health.network_ready) == (True, True)
    assert subject.runtime.name
