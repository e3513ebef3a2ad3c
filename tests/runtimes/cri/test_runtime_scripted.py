"""The CRI runtime as the engine uses it, over a transport without a runtime."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeHealth, SandboxConfig
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.schema import cri
from podkeeper.testing.virtual_time import VirtualClock
from tests.runtimes.cri.requests.requesting import pod, wanted
from tests.runtimes.cri.scripted_transport import ScriptedTransport


def _constant(response: Message, _: object) -> Message:
    return response


class Transport(ScriptedTransport):
    """Answers all calls with success by default."""

    def __init__(self) -> None:
        super().__init__()
        for name in (
            *("StartContainer", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"),
            *("ReopenContainerLog", "RemoveImage", "ListImages"),
        ):
            self.answers[name] = partial(_constant, getattr(cri, f"{name}Response")())
        self.answers["RunPodSandbox"] = lambda _: cri.RunPodSandboxResponse(pod_sandbox_id="b")
        self.answers["CreateContainer"] = lambda _: cri.CreateContainerResponse(container_id="c")
        self.answers["Version"] = lambda _: cri.VersionResponse(runtime_name="containerd", runtime_version="2.1")
        self.answers["Status"] = lambda _: cri.StatusResponse(
            features=cri.RuntimeFeatures(supplemental_groups_policy=True)
        )

    def methods(self) -> list[str]:
        return [method.rpartition("/")[2] for method, _, _ in self.requests]


Work = Callable[[CriRuntime, Transport], Awaitable[None]]


def play(tmp_path: Path, work: Work, **options: Any) -> None:
    async def scenario() -> None:
        transport = Transport()
        node = NodeFacts(memory_bytes=2**30, pods_root=str(tmp_path), seccomp_root="/s", cgroup_v2=True)
        runtime = CriRuntime(transport, node, clock=VirtualClock(), **options)
        await work(runtime, transport)

    asyncio.run(scenario())


def test_a_runtime_is_opened_and_closed(tmp_path: Path) -> None:
    async def work(runtime: CriRuntime, transport: Transport) -> None:
        transport.streams["Subscribe"] = asyncio.Queue()  # silent
        assert (runtime.name, runtime.facts.supplemental_groups_policy) == ("cri", False)
        async with runtime as opened:
            assert opened is runtime
            assert runtime.name == "containerd"
            assert runtime.facts.supplemental_groups_policy
            assert transport.methods() == ["Version", "Status"]
            stream = runtime.events()
            await asyncio.sleep(0)
            transport.requests.clear()
            await runtime.stop_container("c", 5)
            await runtime.stop_sandbox("b")
            await runtime.remove_container("c")
            await runtime.remove_sandbox("b")
            await runtime.reopen_log("c")
            await runtime.remove_image("i")
            assert transport.methods() == [
                "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox", "ReopenContainerLog",
                "RemoveImage",
            ]  # fmt: skip
            assert (*await runtime.list_images(),) == ()
        assert transport.closed == 1
        assert [event async for event in stream] == []

    play(tmp_path, work)


def test_each_start_is_reported_once(tmp_path: Path) -> None:
    started: list[tuple[str, ContainerConfig]] = []

    async def note(container_id: str, config: ContainerConfig) -> None:
        started.append((container_id, config))

    async def work(runtime: CriRuntime, transport: Transport) -> None:
        await runtime.run_sandbox(SandboxConfig(pod=pod(), attempt=0))
        await runtime.create_container("b", wanted(pod()))
        assert started == []
        for _ in range(2):
            await runtime.start_container("c")
        await runtime.start_container("not a pod")
        assert started == [("c", wanted(pod()))]

    play(tmp_path, work, started=note)


STARTS: dict[str, tuple[Any, bool]] = {
    "runs": (cri.ContainerStatus(state=cri.CONTAINER_RUNNING, started_at=1), True),
    "has exited": (cri.ContainerStatus(state=cri.CONTAINER_EXITED, started_at=1), True),
    "has exited without a start": (cri.ContainerStatus(state=cri.CONTAINER_EXITED), False),
    "is created": (cri.ContainerStatus(state=cri.CONTAINER_CREATED, started_at=1), False),
    "is unknown": (cri.ContainerStatus(state=cri.CONTAINER_UNKNOWN, started_at=1), False),
    "not available": (None, False),
}


@pytest.mark.parametrize("status, is_fine", STARTS.values(), ids=STARTS.keys())
def test_a_refused_start_succeeds_only_if_the_container_has_started(status: Any, is_fine: bool, tmp_path: Path) -> None:
    async def work(runtime: CriRuntime, transport: Transport) -> None:
        transport.answers["StartContainer"] = lambda _: RuntimeRefused("rpc error: code = Unknown desc = no")
        answer = RuntimeUnavailable("away") if status is None else cri.ContainerStatusResponse(status=status)
        transport.answers["ContainerStatus"] = lambda _: answer
        if is_fine:
            await runtime.start_container("c")
        else:
            with pytest.raises(RuntimeRefused) as raised:
                await runtime.start_container("c")
            assert str(raised.value) == "no"
        assert transport.methods() == ["StartContainer", "ContainerStatus"]

    play(tmp_path, work)


TIMED_OUT = TimedOut('command timed out: "sleep \\"9\\"" timed out after 1.5s')
COMMANDS: dict[str, tuple[Any, CommandEnd]] = {
    "an end": (cri.ExecSyncResponse(exit_code=3, stdout=b"out", stderr=b"err"), CommandExited(3, b"outerr")),
    "a call that is late": (CallTimedOut("late"), TIMED_OUT),
    "a command that is late": (RuntimeRefused("context deadline exceeded"), TIMED_OUT),
    "a command that CRI-O cut off": (cri.ExecSyncResponse(exit_code=-1, stderr=b"command timed out"), TIMED_OUT),
    "a runtime that is away": (RuntimeUnavailable("dial timed out"), NotRun("dial timed out")),
    "a refusal": (RuntimeRefused("no such file"), NotRun("no such file")),
}


@pytest.mark.parametrize("answer, expected", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_end_of_a_command(answer: Any, expected: CommandEnd, tmp_path: Path) -> None:
    async def work(runtime: CriRuntime, transport: Transport) -> None:
        transport.answers["ExecSync"] = lambda _: answer
        assert await runtime.exec_sync("c", ["sleep", '"9"'], 1.5) == expected

    play(tmp_path, work)


def condition(kind: str, status: bool) -> cri.RuntimeCondition:
    return cri.RuntimeCondition(type=kind, status=status, reason="R", message="M")


HEALTH: dict[str, tuple[list[cri.RuntimeCondition], RuntimeHealth]] = {
    "all is well": (
        [condition("RuntimeReady", True), condition("NetworkReady", True)], RuntimeHealth(True, True, "")),
    "the network is not ready": (
        [condition("RuntimeReady", True), condition("NetworkReady", False)],
        RuntimeHealth(True, False,
                      "container runtime network not ready: NetworkReady=false reason:R message:M")),
    "the runtime is not ready": (
        [condition("RuntimeReady", False), condition("NetworkReady", True)],
        RuntimeHealth(False, True, "container runtime not ready: RuntimeReady=false reason:R message:M")),
}  # fmt: skip


@pytest.mark.parametrize("conditions, expected", HEALTH.values(), ids=HEALTH.keys())
def test_health(conditions: list[cri.RuntimeCondition], expected: RuntimeHealth, tmp_path: Path) -> None:
    async def work(runtime: CriRuntime, transport: Transport) -> None:
        answer = cri.StatusResponse(status=cri.RuntimeStatus(conditions=conditions))
        transport.answers["Status"] = lambda _: answer
        assert await runtime.health() == expected

    play(tmp_path, work)


def test_a_runtime_without_conditions_is_not_ready(tmp_path: Path) -> None:
    async def work(runtime: CriRuntime, transport: Transport) -> None:
        transport.answers["Status"] = lambda _: cri.StatusResponse()
        found = await runtime.health()
        assert (found.runtime_ready, found.network_ready, found.message.count("; ")) == (False, False, 1)

    play(tmp_path, work)
