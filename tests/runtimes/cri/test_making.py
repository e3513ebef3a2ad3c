"""Making sandboxes and containers: the whole requests, and what becomes of an earlier try."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import CallTimedOut, NotConfigurable, RuntimeRefused
from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, Mount, SandboxConfig
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.ending import Ending
from podkeeper.runtimes.cri.index import Index, Kind, Owner
from podkeeper.runtimes.cri.making import Making
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.requests.container import container_message
from podkeeper.runtimes.cri.requests.node import Handler, IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import sandbox_message
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.requesting import NO_FILES, mount, pod, wanted
from tests.runtimes.cri.scripted_transport import ScriptedTransport

LATE = CallTimedOut("no answer")
UID = "uid-1"


def taken(holder: str = "") -> RuntimeRefused:
    words = f'name "web" is reserved for "{holder}"' if holder else "the name is already in use"
    return RuntimeRefused(f"rpc error: code = Unknown desc = {words}")


class Stage(ScriptedTransport):
    """A runtime that is asked by `making`. `runs` and `creates` are its next answers: ids and errors."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.node = NodeFacts(
            memory_bytes=2**30,
            pods_root=str(root / "pods"),
            seccomp_root="/seccomp",
            cgroup_v2=True,
            runtime_classes={"strong": "kata"},
            handlers={"": Handler(user_namespaces=True)},
        )
        self.runs: list[str | Exception] = []
        self.creates: list[str | Exception] = []
        self.boxes: list[cri.PodSandbox] = []
        self.containers: list[cri.Container] = []
        self.info = ""
        self.rebuilt: list[tuple[Pod, int]] = []
        self.prepared: list[tuple[str, Mount, str, int]] = []
        self.answers = {
            "RunPodSandbox": lambda _: _next(self.runs, lambda id: cri.RunPodSandboxResponse(pod_sandbox_id=id)),
            "CreateContainer": lambda _: _next(self.creates, lambda id: cri.CreateContainerResponse(container_id=id)),
            "ListPodSandbox": lambda _: cri.ListPodSandboxResponse(items=self.boxes),
            "ListContainers": lambda _: cri.ListContainersResponse(containers=self.containers),
            "ContainerStatus": self._status,
            "PodSandboxStatus": lambda _: cri.PodSandboxStatusResponse(
                status=cri.PodSandboxStatus(id="b", metadata=cri.PodSandboxMetadata(attempt=3)),
                info={"info": self.info},
            ),
            "StopPodSandbox": lambda _: cri.StopPodSandboxResponse(),
            "RemovePodSandbox": lambda _: cri.RemovePodSandboxResponse(),
            "RemoveContainer": lambda _: cri.RemoveContainerResponse(),
        }
        self.index = Index()
        self.calls = Calls(self)
        ending = Ending(self.calls)
        ending.learn("containerd")
        self.making = Making(
            self.calls, ending, self.index, self.node, PodFiles(self.node.pods_root), self._rebuild, self._prepare
        )

    def _status(self, request: Any) -> Any:
        state = next(each.state for each in self.containers if each.id == request.container_id)
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(id=request.container_id, state=state))

    def _rebuild(self, of: Pod, attempt: int) -> SandboxConfig:
        self.rebuilt.append((of, attempt))
        return SandboxConfig(pod=of, attempt=attempt, hostname="rebuilt", log_directory="/logs", cgroup_parent="/pods")

    async def _prepare(self, uid: PodUID, what: Mount, container: str, index: int) -> str:
        self.prepared.append((uid, what, container, index))
        return f"/prepared/{index}"

    @property
    def told(self) -> list[str]:
        """The methods and their subjects."""
        found = []
        for method, request, _ in self.requests:
            fields: Any = request
            match method.rpartition("/")[2]:
                case "RunPodSandbox" as name:
                    found.append(f"{name} {fields.runtime_handler}".strip())
                case "ListPodSandbox" | "ListContainers" as name:
                    found.append(f"{name} {fields.filter.label_selector['io.kubernetes.pod.uid']}")
                case "CreateContainer" | "StopPodSandbox" | "RemovePodSandbox" | "PodSandboxStatus" as name:
                    found.append(f"{name} {fields.pod_sandbox_id}")
                case name:
                    found.append(f"{name} {fields.container_id}")
        return found

    def sent(self, method: str) -> Any:
        """The last request of a method."""
        return [request for name, request, _ in self.requests if name.endswith("/" + method)][-1]


def _next(answers: list[str | Exception], made: Callable[[str], Any]) -> Any:
    answer = answers.pop(0)
    return answer if isinstance(answer, Exception) else made(answer)


def box(sandbox_id: str, attempt: int = 0, ready: bool = True, created: int = 0) -> cri.PodSandbox:
    return cri.PodSandbox(
        id=sandbox_id,
        metadata=cri.PodSandboxMetadata(attempt=attempt),
        state=cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY,
        created_at=created,
    )


def container(container_id: str, state: Any, name: str = "web", attempt: int = 0) -> cri.Container:
    return cri.Container(id=container_id, state=state, metadata=cri.ContainerMetadata(name=name, attempt=attempt))


CREATED, RUNNING, EXITED = cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED


def play(tmp_path: Path, work: Callable[[Stage], Awaitable[None]]) -> None:
    async def scenario() -> None:
        await work(Stage(tmp_path))

    asyncio.run(scenario())


# Sandboxes.


def test_a_sandbox_is_asked_for_and_remembered(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        given = SandboxConfig(
            pod=pod(runtime_class_name="strong"), attempt=2, log_directory=str(tmp_path / "logs" / "web")
        )
        stage.runs = ["b"]
        assert await stage.making.run_sandbox(given) == "b"
        expected = cri.RunPodSandboxRequest(config=sandbox_message(given, stage.node), runtime_handler="kata")
        assert stage.requests == [("/runtime.v1.RuntimeService/RunPodSandbox", expected, 240.0)]
        assert stage.index.get("b") == Owner(PodUID(UID), Kind.SANDBOX, made_here=True)
        assert (tmp_path / "logs" / "web").is_dir()
        stage.creates = ["c"]
        await stage.making.create_container("b", wanted(pod()))
        assert stage.sent("CreateContainer").sandbox_config == expected.config
        assert stage.told == ["RunPodSandbox kata", "CreateContainer b"]

    play(tmp_path, work)


def test_a_pod_with_users_of_its_own_gets_a_range(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        (tmp_path / "pods").mkdir()
        given = SandboxConfig(pod=pod(host_users=False), attempt=0)
        stage.runs, stage.creates = ["b"], ["c"]
        await stage.making.run_sandbox(given)
        users = IdRange(65536)
        assert stage.sent("RunPodSandbox").config == sandbox_message(given, stage.node, users)
        await stage.making.create_container("b", wanted(pod(host_users=False)))
        expected = container_message(wanted(pod(host_users=False)), stage.node, NO_FILES, users)
        assert stage.sent("CreateContainer").config == expected

    play(tmp_path, work)


def test_a_log_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        (tmp_path / "logs").write_text("")
        given = SandboxConfig(pod=pod(), attempt=0, log_directory=str(tmp_path / "logs" / "web"))
        with pytest.raises(NotConfigurable, match=f"cannot make {given.log_directory} for the logs of pod .*web"):
            await stage.making.run_sandbox(given)
        assert stage.requests == []

    play(tmp_path, work)


AGAIN = ["ListPodSandbox uid-1"]
SANDBOXES: dict[str, tuple[list[str | Exception], list[cri.PodSandbox], str, list[str]]] = {
    "the name is taken by a ready sandbox of this attempt": (
        [taken("b")], [box("b"), box("other", 1)], "b", ["RunPodSandbox", *AGAIN]),
    "the youngest ready one is adopted and the others are removed": (
        [taken("b")], [box("b", created=1), box("y", created=2), box("z", ready=False, created=3)], "y",
        ["RunPodSandbox", *AGAIN, "StopPodSandbox b", "RemovePodSandbox b", "StopPodSandbox z", "RemovePodSandbox z"]),
    "the name is taken by a stopped sandbox": (
        [taken(), "n"], [box("b", ready=False)], "n",
        ["RunPodSandbox", *AGAIN, "StopPodSandbox b", "RemovePodSandbox b", "RunPodSandbox"]),
    "the name is taken by something that is not listed": (
        [taken("h"), "n"], [], "n",
        ["RunPodSandbox", *AGAIN, "StopPodSandbox h", "RemovePodSandbox h", "RunPodSandbox"]),
    "the name is taken by nobody knows what": ([taken(), "n"], [], "n", ["RunPodSandbox", *AGAIN, "RunPodSandbox"]),
}  # fmt: skip


@pytest.mark.parametrize("runs, boxes, expected, told", SANDBOXES.values(), ids=SANDBOXES.keys())
def test_an_earlier_sandbox(
    runs: list[str | Exception], boxes: list[cri.PodSandbox], expected: str, told: list[str], tmp_path: Path
) -> None:
    async def work(stage: Stage) -> None:
        stage.runs, stage.boxes = list(runs), boxes
        assert await stage.making.run_sandbox(SandboxConfig(pod=pod(), attempt=0)) == expected
        assert (stage.told, stage.runs) == (told, [])
        assert stage.index.get(expected) == Owner(PodUID(UID), Kind.SANDBOX, made_here=True)

    play(tmp_path, work)


def test_a_refusal_for_another_reason_is_told_and_leaves_no_doubt(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        stage.runs = [RuntimeRefused("no network"), "b"]
        given = SandboxConfig(pod=pod(), attempt=0)
        with pytest.raises(RuntimeRefused, match="no network"):
            await stage.making.run_sandbox(given)
        assert await stage.making.run_sandbox(given) == "b"
        assert stage.told == ["RunPodSandbox", "RunPodSandbox"]

    play(tmp_path, work)


@pytest.mark.parametrize("boxes, expected", [([box("old")], "old"), ([box("other", 1)], "new"), ([], "new")])
@pytest.mark.parametrize("trouble", [LATE, ""], ids=["no answer", "no id"])
def test_after_a_call_without_an_answer_the_sandbox_is_looked_for(
    trouble: Any, boxes: list[cri.PodSandbox], expected: str, tmp_path: Path
) -> None:
    async def work(stage: Stage) -> None:
        stage.runs, stage.boxes = [trouble, "new", "third"], boxes
        given = SandboxConfig(pod=pod(), attempt=0)
        with pytest.raises((CallTimedOut, RuntimeRefused)) as raised:
            await stage.making.run_sandbox(given)
        if not trouble:
            assert str(raised.value) == "cannot use the sandbox that was made for pod uid-1: the runtime told no id"
        stage.requests.clear()
        assert await stage.making.run_sandbox(replace(given, attempt=7)) == "new"
        assert stage.told == ["RunPodSandbox"]  # the doubt is about another attempt
        stage.runs = ["new"]
        stage.index.drop("new")
        stage.requests.clear()
        assert await stage.making.run_sandbox(given) == expected
        assert stage.told == [*AGAIN, *(["RunPodSandbox"] if expected == "new" else [])]
        stage.runs = ["fresh"]
        stage.requests.clear()
        assert await stage.making.run_sandbox(given) == "fresh"
        assert stage.told == ["RunPodSandbox"]  # there is no doubt any more

    play(tmp_path, work)


def test_an_id_that_was_seen_before_is_not_new(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        stage.index.saw("b", UID, Kind.SANDBOX)
        stage.runs, stage.boxes = ["b", "n"], [box("b", ready=False)]
        assert await stage.making.run_sandbox(SandboxConfig(pod=pod(), attempt=0)) == "n"
        assert stage.told == [
            "RunPodSandbox", *AGAIN, "StopPodSandbox b", "RemovePodSandbox b", "RunPodSandbox",
        ]  # fmt: skip

    play(tmp_path, work)


# Containers.


async def prepared(stage: Stage) -> None:
    """A sandbox `b` that is remembered."""
    stage.runs = ["b"]
    await stage.making.run_sandbox(SandboxConfig(pod=pod(), attempt=0, log_directory=""))
    stage.requests.clear()


def test_a_container_is_asked_for_with_its_sub_paths(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await prepared(stage)
        mounts = (mount(), mount(container_path="/x", sub_path="a"), mount(container_path="/y", sub_path="b"))
        config = wanted(pod(), mounts=mounts)
        stage.creates = ["c"]
        assert await stage.making.create_container("b", config) == "c"
        assert stage.prepared == [(UID, mounts[1], "web", 1), (UID, mounts[2], "web", 2)]
        plain = (
            mounts[0],
            replace(mounts[1], host_path="/prepared/1", sub_path=""),
            replace(mounts[2], host_path="/prepared/2", sub_path=""),
        )
        message = container_message(replace(config, mounts=plain), stage.node, NO_FILES)
        assert stage.sent("CreateContainer").config == message
        assert stage.index.get("c") == Owner(PodUID(UID), Kind.CONTAINER, made_here=True)
        assert stage.told == ["CreateContainer b"]

    play(tmp_path, work)


def test_files_are_made_for_a_container(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        stage.runs, stage.creates = ["b"], ["c"]
        logs = tmp_path / "logs"
        await stage.making.run_sandbox(SandboxConfig(pod=pod(), attempt=0, log_directory=str(logs)))
        last = Container(name="web", termination_message_path="/last")
        await stage.making.create_container("b", wanted(pod(), last, log_path="web/0.log"))
        (found,) = stage.sent("CreateContainer").config.mounts
        assert (found.container_path, Path(found.host_path).parent) == (
            "/last", tmp_path / "pods" / UID / "containers" / "web",
        )  # fmt: skip
        assert (logs / "web").is_dir()

    play(tmp_path, work)


CONTAINERS: dict[str, tuple[list[str | Exception], list[cri.Container], str, list[str]]] = {
    "the name is taken by one that never started": (
        [taken("h"), "n"],
        [container("o", CREATED), container("x", RUNNING, "side"), container("y", EXITED, attempt=1)], "n",
        ["CreateContainer b", "ListContainers uid-1", "RemoveContainer h", "RemoveContainer o", "CreateContainer b"]),
    "the name is taken by one that is not listed": (
        [taken("h"), "n"], [], "n",
        ["CreateContainer b", "ListContainers uid-1", "RemoveContainer h", "CreateContainer b"]),
    "the name is taken by nobody knows what": (
        [taken(), "n"], [], "n", ["CreateContainer b", "ListContainers uid-1", "CreateContainer b"]),
}  # fmt: skip


@pytest.mark.parametrize("creates, containers, expected, told", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_an_earlier_container(
    creates: list[str | Exception], containers: list[cri.Container], expected: str, told: list[str], tmp_path: Path
) -> None:
    async def work(stage: Stage) -> None:
        await prepared(stage)
        stage.creates, stage.containers = list(creates), containers
        assert await stage.making.create_container("b", wanted(pod())) == expected
        assert (stage.told, stage.creates) == (told, [])

    play(tmp_path, work)


@pytest.mark.parametrize("state", [RUNNING, EXITED, cri.CONTAINER_UNKNOWN])
def test_a_container_that_has_started_is_not_replaced(state: Any, tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await prepared(stage)
        stage.creates = [taken("o")]
        stage.containers = [container("n", CREATED, attempt=2), container("o", state, attempt=2)]
        with pytest.raises(RuntimeRefused) as raised:
            await stage.making.create_container("b", wanted(pod(), attempt=2))
        assert str(raised.value) == "cannot create container web: attempt 2 has already started"
        assert stage.told == ["CreateContainer b", "ListContainers uid-1"]

    play(tmp_path, work)


SEEN: dict[str, tuple[bool, Any, list[str]]] = {
    "seen in a list, and just created": (False, CREATED, ["CreateContainer b", "ContainerStatus c"]),
    "made here": (
        True, CREATED, ["CreateContainer b", "ListContainers uid-1", "RemoveContainer c", "CreateContainer b"]),
}  # fmt: skip


@pytest.mark.parametrize("made_here, state, told", SEEN.values(), ids=SEEN.keys())
def test_an_id_that_is_known_already(made_here: bool, state: Any, told: list[str], tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await prepared(stage)
        stage.containers = [container("c", state)]
        (stage.index.made if made_here else stage.index.saw)("c", UID, Kind.CONTAINER)
        stage.creates = ["c", "n"]
        assert await stage.making.create_container("b", wanted(pod())) == ("n" if made_here else "c")
        assert stage.told == told

    play(tmp_path, work)


def test_an_id_that_runs_already_is_not_used(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await prepared(stage)
        stage.containers = [container("c", RUNNING)]
        stage.index.saw("c", UID, Kind.CONTAINER)
        stage.creates = ["c"]
        with pytest.raises(RuntimeRefused, match="attempt 0 has already started"):
            await stage.making.create_container("b", wanted(pod()))
        assert stage.told == ["CreateContainer b", "ContainerStatus c", "ListContainers uid-1"]

    play(tmp_path, work)


def test_other_refusals_are_told_without_their_code(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await prepared(stage)
        stage.creates = [RuntimeRefused("rpc error: code = Unknown desc = no space"), LATE, ""]
        for error, text in (
            (RuntimeRefused, "no space"),
            (CallTimedOut, "no answer"),
            (RuntimeRefused, "cannot use container web that was made: the runtime told no id"),
        ):
            with pytest.raises(error) as raised:
                await stage.making.create_container("b", wanted(pod()))
            assert str(raised.value) == text
        assert len(stage.told) == 3

    play(tmp_path, work)


# What a sandbox was made from.


def test_a_sandbox_that_nobody_remembers_is_asked_for_its_configuration_once(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        kept = {"metadata": {"uid": UID}, "hostname": "kept"}
        stage.info, stage.creates = json.dumps({"config": kept}), ["c1", "c2", "c3"]
        for _ in range(2):
            await stage.making.create_container("b", wanted(pod()))
        assert stage.sent("PodSandboxStatus") == cri.PodSandboxStatusRequest(pod_sandbox_id="b", verbose=True)
        assert stage.sent("CreateContainer").sandbox_config == cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(uid=UID), hostname="kept"
        )
        assert (stage.told, stage.rebuilt) == (["PodSandboxStatus b", "CreateContainer b", "CreateContainer b"], [])
        stage.making.forget("b")
        stage.making.forget("b")
        await stage.making.create_container("b", wanted(pod()))
        assert stage.told.count("PodSandboxStatus b") == 2

    play(tmp_path, work)


@pytest.mark.parametrize(
    "annotations, logs, cgroup",
    [
        ({}, "/logs", "/pods"),
        ({"io.kubernetes.cri-o.LogPath": "/kept/x.log"}, "/kept", "/pods"),
        ({"io.kubernetes.cri-o.CgroupParent": "/slice"}, "/logs", "/slice"),
    ],
    ids=["nothing", "the log", "the cgroup"],
)
def test_a_configuration_that_the_runtime_does_not_keep_is_rebuilt(
    annotations: dict[str, str], logs: str, cgroup: str, tmp_path: Path
) -> None:
    async def work(stage: Stage) -> None:
        stage.info, stage.creates = json.dumps({"runtimeSpec": {"annotations": annotations}}), ["c"]
        given: ContainerConfig = wanted(pod())
        await stage.making.create_container("b", given)
        assert stage.rebuilt == [(given.pod, 3)]
        config = SandboxConfig(pod=given.pod, attempt=3, hostname="rebuilt", log_directory=logs, cgroup_parent=cgroup)
        assert stage.sent("CreateContainer").sandbox_config == sandbox_message(config, stage.node)

    play(tmp_path, work)
