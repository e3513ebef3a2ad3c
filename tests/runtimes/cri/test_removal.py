"""Stopping and removing: the exact calls that each kind of runtime gets."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.removal import Removal
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.cri.scripted_transport import ScriptedTransport

Work = Callable[[Removal], Awaitable[None]]
BUSY, LATE, GONE = RuntimeRefused("busy"), CallTimedOut("late"), ObjectNotFound("gone")
STATES = {"created": cri.CONTAINER_CREATED, "running": cri.CONTAINER_RUNNING, "exited": cri.CONTAINER_EXITED}


class Runtime(ScriptedTransport):
    """A runtime with a container in each state. `trouble`: the errors of the next calls of a method; None: success."""

    def __init__(self, faults: dict[str, list[Exception | None]]) -> None:
        super().__init__()
        self._trouble = {method: list(errors) for method, errors in faults.items()}
        for name in ("StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"):
            self.answers[name] = partial(self._answer, name, getattr(cri, f"{name}Response")())
        self.answers["ContainerStatus"] = self._status
        containers = [cri.Container(id=name, state=state) for name, state in STATES.items()]
        self.answers["ListContainers"] = lambda _: cri.ListContainersResponse(containers=containers)

    def _answer(self, name: str, answer: Any, _: object) -> Any:
        errors = self._trouble.get(name, [])
        return (errors.pop(0) if errors else None) or answer

    def _status(self, request: Any) -> Any:
        if request.container_id not in STATES:
            return GONE
        state = STATES[request.container_id]
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(id=request.container_id, state=state))

    @property
    def sent(self) -> list[str]:
        """Each call with its subject and its deadline."""
        found = []
        for method, request, seconds in self.requests:
            any_request: Any = request
            name = method.rpartition("/")[2]
            if name == "ListContainers":
                subject = any_request.filter.pod_sandbox_id
            else:
                subject = any_request.pod_sandbox_id if "Sandbox" in name else any_request.container_id
            found.append(f"{name} {subject} {seconds:g}")
        return found


KILLS = ["ListContainers b 120", "StopContainer created 120", "StopContainer running 120"]
STOP, REMOVE = "StopPodSandbox b 120", "RemovePodSandbox b 120"

CASES: dict[str, tuple[str, Work, dict[str, list[Exception | None]], list[str]]] = {
    "containerd stops a container": (
        "containerd", lambda removal: removal.stop_container("running", 5), {}, ["StopContainer running 125"]),
    "CRI-O stops a container that runs": (
        "cri-o", lambda removal: removal.stop_container("running", 5), {},
        ["ContainerStatus running 120", "StopContainer running 125"]),
    "CRI-O gets no stop call for an exited container": (
        "cri-o", lambda removal: removal.stop_container("exited", 5), {}, ["ContainerStatus exited 120"]),
    "CRI-O gets no stop call for a removed container": (
        "cri-o", lambda removal: removal.stop_container("nothing", 5), {}, ["ContainerStatus nothing 120"]),
    "containerd stops a sandbox": ("containerd", lambda removal: removal.stop_sandbox("b"), {}, [STOP]),
    "CRI-O stops a sandbox after all in it is killed": (
        "cri-o", lambda removal: removal.stop_sandbox("b"), {}, [*KILLS, "StopPodSandbox b 4"]),
    "CRI-O gets more time if the first was too short": (
        "", lambda removal: removal.stop_sandbox("b"), {"StopPodSandbox": [LATE]},
        [*KILLS, "StopPodSandbox b 4", STOP]),
    "containerd removes a sandbox": ("containerd", lambda removal: removal.remove_sandbox("b"), {}, [REMOVE]),
    "CRI-O removes a sandbox after it is stopped": (
        "cri-o", lambda removal: removal.remove_sandbox("b"), {}, [*KILLS, "StopPodSandbox b 4", REMOVE]),
    "a sandbox that is not removed is stopped first": (
        "containerd", lambda removal: removal.remove_sandbox("b"), {"RemovePodSandbox": [BUSY]},
        [REMOVE, STOP, REMOVE]),
    "containerd removes a container": (
        "containerd", lambda removal: removal.remove_container("c"), {}, ["RemoveContainer c 120"]),
    "CRI-O removes a container after it is killed": (
        "cri-o", lambda removal: removal.remove_container("c"), {}, ["StopContainer c 120", "RemoveContainer c 120"]),
    "a container that is not removed is killed first": (
        "containerd", lambda removal: removal.remove_container("c"), {"RemoveContainer": [BUSY]},
        ["RemoveContainer c 120", "StopContainer c 120", "RemoveContainer c 120"]),
}  # fmt: skip


@pytest.mark.parametrize("runtime_name, work, faults, expected", CASES.values(), ids=CASES.keys())
def test_the_calls_of_stops_and_removals(
    runtime_name: str, work: Work, faults: dict[str, list[Exception | None]], expected: list[str]
) -> None:
    runtime = Runtime(faults)
    removal = Removal(CriCalls(runtime))
    removal.learn("containerd")
    removal.learn(runtime_name)
    simulate(_await(work(removal)))
    assert runtime.sent == expected


async def _await(work: Awaitable[None]) -> None:
    await work


def test_a_runtime_that_is_not_known_yet_is_treated_like_crio() -> None:
    runtime = Runtime({})
    simulate(Removal(CriCalls(runtime)).remove_container("c"))
    assert runtime.sent == ["StopContainer c 120", "RemoveContainer c 120"]


REFUSALS: dict[str, tuple[Work, str, list[Exception | None], type[Exception]]] = {
    "a sandbox is refused twice": (lambda e: e.remove_sandbox("b"), "RemovePodSandbox", [BUSY, BUSY], RuntimeRefused),
    "a container is refused": (lambda e: e.remove_container("c"), "RemoveContainer", [BUSY, BUSY], RuntimeRefused),
    "a removal is late": (lambda e: e.remove_sandbox("b"), "RemovePodSandbox", [LATE], CallTimedOut),
    "a stop is late": (lambda e: e.stop_container("running", 1), "StopContainer", [LATE], CallTimedOut),
    "a stop of a sandbox is refused": (lambda e: e.stop_sandbox("b"), "StopPodSandbox", [BUSY], RuntimeRefused),
}  # fmt: skip


@pytest.mark.parametrize("work, method, errors, expected", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_repeated_refusal_is_reported(
    work: Work, method: str, errors: list[Exception | None], expected: type[Exception]
) -> None:
    async def scenario() -> None:
        removal = Removal(CriCalls(Runtime({method: errors})))
        removal.learn("containerd")
        with pytest.raises(expected):
            await work(removal)

    asyncio.run(scenario())
