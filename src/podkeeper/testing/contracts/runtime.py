"""Contract of the runtime port: sandboxes, containers, images, events, exec, logs and health.

Mutating calls are idempotent, because the engine repeats a call whose response was lost. Stopping or removing an
unknown ID succeeds. A call that waits, such as `stop_container`, must not block other calls.

Each container has a command, for runtimes that run processes, and an annotation with the same behaviour for the fake
runtime. So one scenario suits both.
"""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path

from podkeeper.model.errors import ImagePullFailed, TryLater
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandExited, NotRun, TimedOut
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType, SandboxConfig
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.naming import container_log_path, pod_log_directory
from podkeeper.testing.contracts.contract import TIMEOUT_SECONDS, Contract, eventually, raises

RUNTIME: "Contract[RuntimeSubject]" = Contract()

# The shell handles TERM, because the kernel drops TERM for the first process of a PID namespace without a handler.
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
    """A runtime and the images to use with it."""

    runtime: Runtime
    image: str  # can be pulled, contains `sh` and `sleep`
    missing_image: str = "podkeeper.invalid/missing:1"  # cannot be pulled
    settle_seconds: float = 0.2  # time for a started shell to set its traps
    log_root: str = ""  # directory for container logs; empty if the runtime writes none


class _PodHarness:
    """One pod in the runtime."""

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
        """Start a container in a sandbox. Return the IDs of the sandbox and the container."""
        sandbox_id = await self.sandbox()
        container_id = await self.create(sandbox_id, name)
        await self.runtime.start_container(container_id)
        return sandbox_id, container_id

    async def record(self) -> PodRecord:
        return await self.runtime.pod_record(self.uid)

    async def container(self, container_id: str) -> ContainerRecord:
        return next(it for it in (await self.record()).containers if it.id == container_id)

    async def exited(self, container_id: str) -> ContainerRecord:
        """Wait until the container has exited. Return its record."""

        async def holds() -> bool:
            return (await self.container(container_id)).state is RecordState.EXITED

        await eventually(holds, f"container {container_id} exited")
        return await self.container(container_id)


@RUNTIME.scenario
async def run_sandbox_returns_a_ready_sandbox(subject: RuntimeSubject) -> None:
    """`run_sandbox` returns the ID of a ready sandbox. `pod_record` and `list_pods` then include the pod."""
    harness = _PodHarness(subject)
    sandbox_id = await harness.sandbox(attempt=2)
    record = await harness.record()
    assert [(it.id, it.ready, it.attempt) for it in record.sandboxes] == [(sandbox_id, True, 2)]
    assert (record.uid, record.name, record.namespace) == (harness.uid, harness.pod.metadata.name, "default")
    assert harness.uid in [it.uid for it in await harness.runtime.list_pods()]


@RUNTIME.scenario
async def run_sandbox_is_idempotent(subject: RuntimeSubject) -> None:
    """If a sandbox with the same pod and attempt exists, `run_sandbox` adopts or replaces it.

    One ready sandbox remains. A stopped sandbox is replaced.
    """
    harness = _PodHarness(subject)
    await harness.sandbox()
    again = await harness.sandbox()
    assert [(it.id, it.ready) for it in (await harness.record()).sandboxes] == [(again, True)]
    await harness.runtime.stop_sandbox(again)
    replaced = await harness.sandbox()
    assert [(it.id, it.ready) for it in (await harness.record()).sandboxes] == [(replaced, True)]


@RUNTIME.scenario
async def sandboxes_are_listed_newest_first(subject: RuntimeSubject) -> None:
    """`pod_record` lists the newest sandbox first. Stopped sandboxes remain until they are removed."""
    harness = _PodHarness(subject)
    old = await harness.sandbox(0)
    await harness.runtime.stop_sandbox(old)
    new = await harness.sandbox(1)
    assert [(it.id, it.ready) for it in (await harness.record()).sandboxes] == [(new, True), (old, False)]


@RUNTIME.scenario
async def stop_sandbox_kills_its_containers(subject: RuntimeSubject) -> None:
    """`stop_sandbox` kills all containers that still run in the sandbox. A repeated call succeeds."""
    harness = _PodHarness(subject)
    sandbox_id, container_id = await harness.start("stubborn")
    await harness.runtime.stop_sandbox(sandbox_id)
    await harness.runtime.stop_sandbox(sandbox_id)
    record = await harness.record()
    assert [it.ready for it in record.sandboxes] == [False]
    assert record.ips == ()
    assert [(it.id, it.state) for it in record.containers] == [(container_id, RecordState.EXITED)]


@RUNTIME.scenario
async def remove_sandbox_removes_its_containers(subject: RuntimeSubject) -> None:
    """`remove_sandbox` removes the sandbox and all its containers, running or not.

    A repeated call succeeds. Nothing of the pod remains.
    """
    harness = _PodHarness(subject)
    sandbox_id, _ = await harness.start()
    await harness.create(sandbox_id, "exit")
    await harness.runtime.remove_sandbox(sandbox_id)
    await harness.runtime.remove_sandbox(sandbox_id)
    assert await harness.record() == PodRecord(uid=harness.uid)
    assert harness.uid not in [it.uid for it in await harness.runtime.list_pods()]


@RUNTIME.scenario
async def stopping_and_removing_an_unknown_id_succeeds(subject: RuntimeSubject) -> None:
    """Stopping or removing an unknown container, sandbox or image succeeds."""
    runtime = subject.runtime
    await runtime.stop_container("no-such-container", 1)
    await runtime.remove_container("no-such-container")
    await runtime.stop_sandbox("no-such-sandbox")
    await runtime.remove_sandbox("no-such-sandbox")
    await runtime.remove_image("podkeeper.invalid/unknown:1")


@RUNTIME.scenario
async def an_unknown_pod_has_an_empty_record(subject: RuntimeSubject) -> None:
    """`pod_record` of an unknown pod returns an empty record. It does not raise."""
    uid = PodUID(str(uuid.uuid4()))
    assert await subject.runtime.pod_record(uid) == PodRecord(uid=uid)


@RUNTIME.scenario
async def create_container_does_not_start_it(subject: RuntimeSubject) -> None:
    """`create_container` only creates. The record holds the name, attempt, sandbox and spec hash of the config."""
    harness = _PodHarness(subject)
    sandbox_id = await harness.sandbox()
    container_id = await harness.create(sandbox_id, "live", attempt=5)
    record = await harness.container(container_id)
    assert record.state is RecordState.CREATED
    assert (record.name, record.restart_count, record.sandbox_id) == ("live", 5, sandbox_id)
    assert record.spec_hash == "5ca1ab1e"
    assert record.created_at is not None
    assert record.started_at is None


@RUNTIME.scenario
async def creating_a_container_in_an_unknown_sandbox_fails(subject: RuntimeSubject) -> None:
    """`create_container` raises TryLater if the sandbox does not exist."""
    harness = _PodHarness(subject)
    with raises(TryLater):
        await harness.create("no-such-sandbox", "live")


@RUNTIME.scenario
async def create_container_replaces_an_unstarted_one(subject: RuntimeSubject) -> None:
    """`create_container` removes an unstarted container with the same pod, name and attempt.

    The response of the earlier call may have been lost.
    """
    harness = _PodHarness(subject)
    sandbox_id = await harness.sandbox()
    await harness.create(sandbox_id, "live")
    container_id = await harness.create(sandbox_id, "live")
    assert [it.id for it in (await harness.record()).containers] == [container_id]
    await harness.runtime.start_container(container_id)
    assert (await harness.container(container_id)).state is RecordState.RUNNING


@RUNTIME.scenario
async def a_started_attempt_is_not_created_again(subject: RuntimeSubject) -> None:
    """`create_container` raises TryLater if a container with this name and attempt runs or has exited.

    That container stays unchanged.
    """
    harness = _PodHarness(subject)
    sandbox_id, running = await harness.start("live")
    exited = await harness.create(sandbox_id, "exit")
    await harness.runtime.start_container(exited)
    await harness.exited(exited)
    for name in ("live", "exit"):
        with raises(TryLater):
            await harness.create(sandbox_id, name)
    states = {it.id: it.state for it in (await harness.record()).containers}
    assert states == {running: RecordState.RUNNING, exited: RecordState.EXITED}


@RUNTIME.scenario
async def start_container_is_idempotent(subject: RuntimeSubject) -> None:
    """`start_container` returns when the container runs. A repeated call changes nothing."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start()
    first = await harness.container(container_id)
    await harness.runtime.start_container(container_id)
    second = await harness.container(container_id)
    assert (first.state, second.state) == (RecordState.RUNNING, RecordState.RUNNING)
    assert first.started_at is not None
    assert first.started_at == second.started_at


@RUNTIME.scenario
async def starting_an_unknown_container_fails(subject: RuntimeSubject) -> None:
    """`start_container` raises TryLater if the container does not exist."""
    with raises(TryLater):
        await subject.runtime.start_container("no-such-container")


@RUNTIME.scenario
async def the_exit_code_is_kept_until_removal(subject: RuntimeSubject) -> None:
    """The record of an exited container keeps its exit code and times until removal.

    Stopping the container again changes nothing.
    """
    harness = _PodHarness(subject)
    _, container_id = await harness.start("exit")
    record = await harness.exited(container_id)
    assert record.exit_code == 3
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.started_at <= record.finished_at
    await harness.runtime.stop_container(container_id, 5)
    assert await harness.container(container_id) == record


@RUNTIME.scenario
async def stop_container_returns_when_the_container_has_exited(subject: RuntimeSubject) -> None:
    """`stop_container` sends SIGTERM and returns when the container has exited, not only when the grace period ends."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("exit")
    _, container_id = await harness.start("live")
    await asyncio.sleep(harness.settle_seconds)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await harness.runtime.stop_container(container_id, TIMEOUT_SECONDS)
    record = await harness.container(container_id)
    assert record.state is RecordState.EXITED
    assert record.finished_at is not None
    assert loop.time() - begun < TIMEOUT_SECONDS


@RUNTIME.scenario
async def a_container_that_ignores_sigterm_is_killed(subject: RuntimeSubject) -> None:
    """`stop_container` sends SIGKILL when the grace period ends. The exit code is then 137."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("stubborn")
    await asyncio.sleep(harness.settle_seconds)
    begun = asyncio.get_running_loop().time()
    await harness.runtime.stop_container(container_id, 1)
    assert asyncio.get_running_loop().time() - begun >= 1
    record = await harness.container(container_id)
    assert (record.state, record.exit_code) == (RecordState.EXITED, 137)


@RUNTIME.scenario
async def a_grace_period_of_0_kills_at_once(subject: RuntimeSubject) -> None:
    """`stop_container` with a grace period of 0 sends SIGKILL at once. The exit code is then 137."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("stubborn")
    await harness.runtime.stop_container(container_id, 0)
    record = await harness.container(container_id)
    assert (record.state, record.exit_code) == (RecordState.EXITED, 137)


@RUNTIME.scenario
async def a_later_stop_can_shorten_the_grace_period(subject: RuntimeSubject) -> None:
    """A second `stop_container` with a shorter grace period ends the container earlier. Both calls return."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("stubborn")
    await asyncio.sleep(harness.settle_seconds)
    begun = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        group.create_task(harness.runtime.stop_container(container_id, TIMEOUT_SECONDS))
        await asyncio.sleep(0.5)
        await harness.runtime.stop_container(container_id, 1)
    assert asyncio.get_running_loop().time() - begun < TIMEOUT_SECONDS
    assert (await harness.container(container_id)).state is RecordState.EXITED


@RUNTIME.scenario
async def remove_container_is_idempotent(subject: RuntimeSubject) -> None:
    """`remove_container` removes a container and kills it if it runs.

    A repeated call succeeds. The sandbox stays ready.
    """
    harness = _PodHarness(subject)
    _, container_id = await harness.start("stubborn")
    await harness.runtime.remove_container(container_id)
    await harness.runtime.remove_container(container_id)
    record = await harness.record()
    assert record.containers == ()
    assert [it.ready for it in record.sandboxes] == [True]


@RUNTIME.scenario
async def containers_are_listed_newest_first(subject: RuntimeSubject) -> None:
    """`pod_record` lists the newest container first. Each attempt has its own ID."""
    harness = _PodHarness(subject)
    sandbox_id, first = await harness.start("exit")
    await harness.exited(first)
    second = await harness.create(sandbox_id, "exit", attempt=1)
    await harness.runtime.start_container(second)
    await harness.exited(second)
    assert [(it.id, it.restart_count) for it in (await harness.record()).containers] == [(second, 1), (first, 0)]


@RUNTIME.scenario
async def list_pods_agrees_with_pod_record(subject: RuntimeSubject) -> None:
    """`list_pods` returns the same IDs and states as `pod_record`."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("exit")
    await harness.exited(container_id)
    await harness.start("live")
    record = await harness.record()
    listed = next(it for it in await harness.runtime.list_pods() if it.uid == harness.uid)
    assert {(it.id, it.ready) for it in listed.sandboxes} == {(it.id, it.ready) for it in record.sandboxes}
    assert {(it.id, it.state) for it in listed.containers} == {(it.id, it.state) for it in record.containers}


@RUNTIME.scenario
async def a_pulled_image_is_found_by_name_and_id(subject: RuntimeSubject) -> None:
    """After `pull_image`, `image` finds the image by its name and by its ID. A repeated pull returns the same image."""
    runtime = subject.runtime
    pulled = await runtime.pull_image(subject.image)
    assert (await runtime.pull_image(subject.image)).id == pulled.id
    for reference in (subject.image, pulled.id):
        found = await runtime.image(reference)
        assert found is not None
        assert found.id == pulled.id
    assert [it.id for it in await runtime.list_images()].count(pulled.id) == 1


@RUNTIME.scenario
async def image_usage_describes_the_image_file_system(subject: RuntimeSubject) -> None:
    """`image_usage` describes the file system that holds the images. None means that images use no disk space."""
    usage = await subject.runtime.image_usage()
    if usage is not None:
        assert usage.mountpoint.startswith("/")
        assert 0 <= usage.available_bytes <= usage.capacity_bytes > 0
        assert usage.used_bytes >= 0


@RUNTIME.scenario
async def pulling_a_missing_image_fails(subject: RuntimeSubject) -> None:
    """`pull_image` raises ImagePullFailed if no registry has the image. `image` returns None for it."""
    assert await subject.runtime.image(subject.missing_image) is None
    with raises(ImagePullFailed):
        await subject.runtime.pull_image(subject.missing_image)
    assert await subject.runtime.image(subject.missing_image) is None


@RUNTIME.scenario
async def events_reach_every_stream(subject: RuntimeSubject) -> None:
    """Each stream opened with `events` gets the events of later starts and stops, independently of other streams."""
    harness = _PodHarness(subject)
    streams = (subject.runtime.events(), subject.runtime.events())
    _, container_id = await harness.start("exit")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for stream in streams:
            seen = []
            async for event in stream:
                if event.container_id == container_id:
                    assert event.uid == harness.uid
                    seen.append(event.type)
                    if event.type is RuntimeEventType.STOPPED:
                        break
            assert RuntimeEventType.STARTED in seen


@RUNTIME.scenario
async def exec_sync_returns_exit_code_and_output(subject: RuntimeSubject) -> None:
    """`exec_sync` runs a command in a container and returns its exit code and output."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("live")
    end = await harness.runtime.exec_sync(container_id, ["sh", "-c", "echo hello; exit 4"], 10)
    assert end == CommandExited(4, b"hello\n")


@RUNTIME.scenario
async def exec_sync_ends_at_its_timeout(subject: RuntimeSubject) -> None:
    """`exec_sync` returns TimedOut when the timeout has passed."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("slow")
    begun = asyncio.get_running_loop().time()
    assert isinstance(await harness.runtime.exec_sync(container_id, ["sleep", "30"], 1), TimedOut)
    assert asyncio.get_running_loop().time() - begun < 20


@RUNTIME.scenario
async def exec_sync_requires_a_running_container(subject: RuntimeSubject) -> None:
    """`exec_sync` returns NotRun, and does not raise, if the container has exited or does not exist."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("exit")
    await harness.exited(container_id)
    assert isinstance(await harness.runtime.exec_sync(container_id, ["true"], 5), NotRun)
    assert isinstance(await harness.runtime.exec_sync("no-such-container", ["true"], 5), NotRun)


@RUNTIME.scenario
async def reopen_log_creates_a_new_file(subject: RuntimeSubject) -> None:
    """`reopen_log` creates a new log file if the old one was renamed.

    It may be called at any time while the container runs.
    """
    harness = _PodHarness(subject)
    _, container_id = await harness.start("live")
    await harness.runtime.reopen_log(container_id)
    if harness.log_root:
        path = Path(pod_log_directory(harness.log_root, harness.pod), container_log_path("live", 0))
        moved = path.rename(path.with_name("moved"))
        await harness.runtime.reopen_log(container_id)
        assert not path.samefile(moved)
    assert (await harness.container(container_id)).state is RecordState.RUNNING


@RUNTIME.scenario
async def reopen_log_requires_a_running_container(subject: RuntimeSubject) -> None:
    """`reopen_log` raises TryLater if the container has exited or does not exist."""
    harness = _PodHarness(subject)
    _, container_id = await harness.start("exit")
    await harness.exited(container_id)
    for each in (container_id, "no-such-container"):
        with raises(TryLater):
            await harness.runtime.reopen_log(each)


@RUNTIME.scenario
async def a_slow_stop_does_not_block_other_calls(subject: RuntimeSubject) -> None:
    """While one container is being stopped, other containers can be created and started."""
    slow, quick = _PodHarness(subject), _PodHarness(subject)
    _, container_id = await slow.start("stubborn")
    await asyncio.sleep(slow.settle_seconds)
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(slow.runtime.stop_container(container_id, 5))
        _, other = await quick.start("live")
        assert (await quick.container(other)).state is RecordState.RUNNING
        assert not stopping.done()


@RUNTIME.scenario
async def health_reports_a_ready_runtime(subject: RuntimeSubject) -> None:
    """`health` reports that the runtime and its network are ready."""
    health = await subject.runtime.health()
    assert (health.runtime_ready, health.network_ready) == (True, True)
    assert subject.runtime.name
