"""Creation of sandboxes and containers: requests, and handling of earlier attempts."""

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
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.creation import Creation
from podkeeper.runtimes.cri.owners import Kind, Owner, OwnerIndex
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.removal import Removal
from podkeeper.runtimes.cri.requests.container import container_message
from podkeeper.runtimes.cri.requests.node import Handler, IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import sandbox_message
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.requests.requesting import NO_FILES, mount, pod, wanted
from tests.runtimes.cri.scripted_transport import ScriptedTransport

LATE = CallTimedOut("no answer")
UID = "uid-1"


def taken(holder: str = "") -> RuntimeRefused:
    words = f'name "web" is reserved for "{holder}"' if holder else "the name is already in use"
    return RuntimeRefused(f"rpc error: code = Unknown desc = {words}")


class Harness(ScriptedTransport):
    """A scripted runtime. `runs` and `creates` are its next results: ids or errors."""

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
        self.index = OwnerIndex()
        self.calls = CriCalls(self)
        removal = Removal(self.calls)
        removal.learn("containerd")
        self.creation = Creation(
            self.calls, removal, self.index, self.node, PodFiles(self.node.pods_root), self._rebuild, self._prepare
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
    def sent(self) -> list[str]:
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

    def request(self, method: str) -> Any:
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


def cri_container(container_id: str, state: Any, name: str = "app", attempt: int = 0) -> cri.Container:
    return cri.Container(id=container_id, state=state, metadata=cri.ContainerMetadata(name=name, attempt=attempt))


CREATED, RUNNING, EXITED = cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED


def play(tmp_path: Path, work: Callable[[Harness], Awaitable[None]]) -> None:
    async def scenario() -> None:
        await work(Harness(tmp_path))

    asyncio.run(scenario())


# Sandboxes.


def test_a_sandbox_is_created_and_its_configuration_stored(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        given = SandboxConfig(
            pod=pod(spec={"runtime_class_name": "strong"}), attempt=2, log_directory=str(tmp_path / "logs" / "web")
        )
        harness.runs = ["b"]
        assert await harness.creation.run_sandbox(given) == "b"
        expected = cri.RunPodSandboxRequest(config=sandbox_message(given, harness.node), runtime_handler="kata")
        assert harness.requests == [("/runtime.v1.RuntimeService/RunPodSandbox", expected, 240.0)]
        assert harness.index.get("b") == Owner(PodUID(UID), Kind.SANDBOX, made_here=True)
        assert (tmp_path / "logs" / "web").is_dir()
        harness.creates = ["c"]
        await harness.creation.create_container("b", wanted(pod()))
        assert harness.request("CreateContainer").sandbox_config == expected.config
        assert harness.sent == ["RunPodSandbox kata", "CreateContainer b"]

    play(tmp_path, work)


def test_a_pod_with_its_own_user_namespace_has_an_id_range(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        (tmp_path / "pods").mkdir()
        given = SandboxConfig(pod=pod(spec={"host_users": False}), attempt=0)
        harness.runs, harness.creates = ["b"], ["c"]
        await harness.creation.run_sandbox(given)
        users = IdRange(65536)
        assert harness.request("RunPodSandbox").config == sandbox_message(given, harness.node, users)
        await harness.creation.create_container("b", wanted(pod(spec={"host_users": False})))
        expected = container_message(wanted(pod(spec={"host_users": False})), harness.node, NO_FILES, users)
        assert harness.request("CreateContainer").config == expected

    play(tmp_path, work)


def test_an_error_creating_the_log_directory_is_reported(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        (tmp_path / "logs").write_text("")
        given = SandboxConfig(pod=pod(), attempt=0, log_directory=str(tmp_path / "logs" / "web"))
        with pytest.raises(NotConfigurable, match=f"cannot create {given.log_directory} for the logs of pod .*web"):
            await harness.creation.run_sandbox(given)
        assert harness.requests == []

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
    "the name is reserved by an unknown id": ([taken(), "n"], [], "n", ["RunPodSandbox", *AGAIN, "RunPodSandbox"]),
}  # fmt: skip


@pytest.mark.parametrize("runs, boxes, expected, sent", SANDBOXES.values(), ids=SANDBOXES.keys())
def test_a_sandbox_name_that_is_taken(
    runs: list[str | Exception], boxes: list[cri.PodSandbox], expected: str, sent: list[str], tmp_path: Path
) -> None:
    async def work(harness: Harness) -> None:
        harness.runs, harness.boxes = list(runs), boxes
        assert await harness.creation.run_sandbox(SandboxConfig(pod=pod(), attempt=0)) == expected
        assert (harness.sent, harness.runs) == (sent, [])
        assert harness.index.get(expected) == Owner(PodUID(UID), Kind.SANDBOX, made_here=True)

    play(tmp_path, work)


def test_another_refusal_is_reported_and_needs_no_check(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        harness.runs = [RuntimeRefused("no network"), "b"]
        given = SandboxConfig(pod=pod(), attempt=0)
        with pytest.raises(RuntimeRefused, match="no network"):
            await harness.creation.run_sandbox(given)
        assert await harness.creation.run_sandbox(given) == "b"
        assert harness.sent == ["RunPodSandbox", "RunPodSandbox"]

    play(tmp_path, work)


@pytest.mark.parametrize("boxes, expected", [([box("old")], "old"), ([box("other", 1)], "new"), ([], "new")])
@pytest.mark.parametrize("fault", [LATE, ""], ids=["no answer", "no id"])
def test_after_a_call_without_response_the_sandbox_is_searched(
    fault: Any, boxes: list[cri.PodSandbox], expected: str, tmp_path: Path
) -> None:
    async def work(harness: Harness) -> None:
        harness.runs, harness.boxes = [fault, "new", "third"], boxes
        given = SandboxConfig(pod=pod(), attempt=0)
        with pytest.raises((CallTimedOut, RuntimeRefused)) as raised:
            await harness.creation.run_sandbox(given)
        if not fault:
            assert str(raised.value) == "cannot use the new sandbox of pod uid-1: the runtime returned an empty ID"
        harness.requests.clear()
        assert await harness.creation.run_sandbox(replace(given, attempt=7)) == "new"
        assert harness.sent == ["RunPodSandbox"]  # the doubt is about another attempt
        harness.runs = ["new"]
        harness.index.drop("new")
        harness.requests.clear()
        assert await harness.creation.run_sandbox(given) == expected
        assert harness.sent == [*AGAIN, *(["RunPodSandbox"] if expected == "new" else [])]
        harness.runs = ["fresh"]
        harness.requests.clear()
        assert await harness.creation.run_sandbox(given) == "fresh"
        assert harness.sent == ["RunPodSandbox"]  # there is no doubt any more

    play(tmp_path, work)


def test_a_known_id_is_not_a_new_sandbox(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        harness.index.saw("b", UID, Kind.SANDBOX)
        harness.runs, harness.boxes = ["b", "n"], [box("b", ready=False)]
        assert await harness.creation.run_sandbox(SandboxConfig(pod=pod(), attempt=0)) == "n"
        assert harness.sent == [
            "RunPodSandbox", *AGAIN, "StopPodSandbox b", "RemovePodSandbox b", "RunPodSandbox",
        ]  # fmt: skip

    play(tmp_path, work)


# Containers.


async def prepared(harness: Harness) -> None:
    """A cached sandbox `b`."""
    harness.runs = ["b"]
    await harness.creation.run_sandbox(SandboxConfig(pod=pod(), attempt=0, log_directory=""))
    harness.requests.clear()


def test_a_container_is_created_with_prepared_sub_paths(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        await prepared(harness)
        mounts = (mount(), mount(container_path="/x", sub_path="a"), mount(container_path="/y", sub_path="b"))
        config = wanted(pod(), mounts=mounts)
        harness.creates = ["c"]
        assert await harness.creation.create_container("b", config) == "c"
        assert harness.prepared == [(UID, mounts[1], "app", 1), (UID, mounts[2], "app", 2)]
        plain = (
            mounts[0],
            replace(mounts[1], host_path="/prepared/1", sub_path=""),
            replace(mounts[2], host_path="/prepared/2", sub_path=""),
        )
        message = container_message(replace(config, mounts=plain), harness.node, NO_FILES)
        assert harness.request("CreateContainer").config == message
        assert harness.index.get("c") == Owner(PodUID(UID), Kind.CONTAINER, made_here=True)
        assert harness.sent == ["CreateContainer b"]

    play(tmp_path, work)


def test_files_are_made_for_a_container(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        harness.runs, harness.creates = ["b"], ["c"]
        logs = tmp_path / "logs"
        await harness.creation.run_sandbox(SandboxConfig(pod=pod(), attempt=0, log_directory=str(logs)))
        last = Container(name="web", termination_message_path="/last")
        await harness.creation.create_container("b", wanted(pod(), last, log_path="web/0.log"))
        (found,) = harness.request("CreateContainer").config.mounts
        assert (found.container_path, Path(found.host_path).parent) == (
            "/last", tmp_path / "pods" / UID / "containers" / "web",
        )  # fmt: skip
        assert (logs / "web").is_dir()

    play(tmp_path, work)


CONTAINERS: dict[str, tuple[list[str | Exception], list[cri.Container], str, list[str]]] = {
    "the name is taken by one that never started": (
        [taken("h"), "n"],
        [cri_container("o", CREATED), cri_container("x", RUNNING, "side"), cri_container("y", EXITED, attempt=1)], "n",
        ["CreateContainer b", "ListContainers uid-1", "RemoveContainer h", "RemoveContainer o", "CreateContainer b"]),
    "the name is taken by one that is not listed": (
        [taken("h"), "n"], [], "n",
        ["CreateContainer b", "ListContainers uid-1", "RemoveContainer h", "CreateContainer b"]),
    "the name is reserved by an unknown id": (
        [taken(), "n"], [], "n", ["CreateContainer b", "ListContainers uid-1", "CreateContainer b"]),
}  # fmt: skip


@pytest.mark.parametrize("creates, containers, expected, sent", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_a_container_name_that_is_taken(
    creates: list[str | Exception], containers: list[cri.Container], expected: str, sent: list[str], tmp_path: Path
) -> None:
    async def work(harness: Harness) -> None:
        await prepared(harness)
        harness.creates, harness.containers = list(creates), containers
        assert await harness.creation.create_container("b", wanted(pod())) == expected
        assert (harness.sent, harness.creates) == (sent, [])

    play(tmp_path, work)


@pytest.mark.parametrize("state", [RUNNING, EXITED, cri.CONTAINER_UNKNOWN])
def test_a_container_that_has_started_is_not_replaced(state: Any, tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        await prepared(harness)
        harness.creates = [taken("o")]
        harness.containers = [cri_container("n", CREATED, attempt=2), cri_container("o", state, attempt=2)]
        with pytest.raises(RuntimeRefused) as raised:
            await harness.creation.create_container("b", wanted(pod(), attempt=2))
        assert str(raised.value) == "cannot create container app: attempt 2 has already started"
        assert harness.sent == ["CreateContainer b", "ListContainers uid-1"]

    play(tmp_path, work)


SEEN: dict[str, tuple[bool, Any, list[str]]] = {
    "seen in a list, and just created": (False, CREATED, ["CreateContainer b", "ContainerStatus c"]),
    "made here": (
        True, CREATED, ["CreateContainer b", "ListContainers uid-1", "RemoveContainer c", "CreateContainer b"]),
}  # fmt: skip


@pytest.mark.parametrize("made_here, state, sent", SEEN.values(), ids=SEEN.keys())
def test_a_returned_id_that_is_not_new(made_here: bool, state: Any, sent: list[str], tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        await prepared(harness)
        harness.containers = [cri_container("c", state)]
        (harness.index.made if made_here else harness.index.saw)("c", UID, Kind.CONTAINER)
        harness.creates = ["c", "n"]
        assert await harness.creation.create_container("b", wanted(pod())) == ("n" if made_here else "c")
        assert harness.sent == sent

    play(tmp_path, work)


def test_the_id_of_a_running_container_is_not_used(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        await prepared(harness)
        harness.containers = [cri_container("c", RUNNING)]
        harness.index.saw("c", UID, Kind.CONTAINER)
        harness.creates = ["c"]
        with pytest.raises(RuntimeRefused, match="attempt 0 has already started"):
            await harness.creation.create_container("b", wanted(pod()))
        assert harness.sent == ["CreateContainer b", "ContainerStatus c", "ListContainers uid-1"]

    play(tmp_path, work)


def test_other_refusals_are_reported_without_grpc_code(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        await prepared(harness)
        harness.creates = [RuntimeRefused("rpc error: code = Unknown desc = no space"), LATE, ""]
        for error, text in (
            (RuntimeRefused, "no space"),
            (CallTimedOut, "no answer"),
            (RuntimeRefused, "cannot use the new container app: the runtime returned an empty ID"),
        ):
            with pytest.raises(error) as raised:
                await harness.creation.create_container("b", wanted(pod()))
            assert str(raised.value) == text
        assert len(harness.sent) == 3

    play(tmp_path, work)


# The configuration of a sandbox.


def test_the_configuration_of_an_unknown_sandbox_is_requested_once(tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        kept = {"metadata": {"uid": UID}, "hostname": "kept"}
        harness.info, harness.creates = json.dumps({"config": kept}), ["c1", "c2", "c3"]
        for _ in range(2):
            await harness.creation.create_container("b", wanted(pod()))
        assert harness.request("PodSandboxStatus") == cri.PodSandboxStatusRequest(pod_sandbox_id="b", verbose=True)
        assert harness.request("CreateContainer").sandbox_config == cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(uid=UID), hostname="kept"
        )
        assert (harness.sent, harness.rebuilt) == (["PodSandboxStatus b", "CreateContainer b", "CreateContainer b"], [])
        harness.creation.forget("b")
        harness.creation.forget("b")
        await harness.creation.create_container("b", wanted(pod()))
        assert harness.sent.count("PodSandboxStatus b") == 2

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
def test_a_sandbox_configuration_that_the_runtime_lacks_is_computed(
    annotations: dict[str, str], logs: str, cgroup: str, tmp_path: Path
) -> None:
    async def work(harness: Harness) -> None:
        harness.info, harness.creates = json.dumps({"runtimeSpec": {"annotations": annotations}}), ["c"]
        given: ContainerConfig = wanted(pod())
        await harness.creation.create_container("b", given)
        assert harness.rebuilt == [(given.pod, 3)]
        config = SandboxConfig(pod=given.pod, attempt=3, hostname="rebuilt", log_directory=logs, cgroup_parent=cgroup)
        assert harness.request("CreateContainer").sandbox_config == sandbox_message(config, harness.node)

    play(tmp_path, work)
