"""Predecessors: who is ended before a static pod starts, and who is not."""

import asyncio

import pytest

from podkeeper.engine.predecessors import Predecessors
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from tests.violations import violation

STATIC = Pod(metadata=ObjectMeta(name="web-n1", namespace="default", uid="new"))
READY = (SandboxRecord(id="s1", ready=True),)
RUNNING = (ContainerRecord(id="c1", name="app", state=ContainerState.RUNNING),)


def record(
    uid: str = "old",
    name: str = "web-n1",
    namespace: str = "default",
    sandboxes: tuple[SandboxRecord, ...] = READY,
    containers: tuple[ContainerRecord, ...] = (),
) -> PodRecord:
    return PodRecord(uid=uid, name=name, namespace=namespace, sandboxes=sandboxes, containers=containers)


class Runtime:
    def __init__(self, records: tuple[PodRecord, ...], error: TryLater | None = None) -> None:
        self._records = records
        self._error = error

    async def list_pods(self) -> tuple[PodRecord, ...]:
        if self._error is not None:
            raise self._error
        return self._records


def ended(*records: PodRecord, desired: frozenset[str] = frozenset(), error: TryLater | None = None) -> list[str]:
    """Who is ended for the static pod."""
    killed: list[str] = []

    async def kill(found: PodRecord, grace_seconds: int) -> None:
        if grace_seconds != 1:
            raise violation(f"{found.uid} is killed with a grace of {grace_seconds} s")
        killed.append(found.uid)

    def is_desired(uid: PodUID) -> bool:
        return uid in desired

    asyncio.run(Predecessors(runtime=Runtime(records, error), kill=kill, is_desired=is_desired).end(STATIC))
    return killed


CASES: dict[str, tuple[PodRecord, list[str]]] = {
    "a copy with a sandbox is ended": (record(), ["old"]),
    "so is one of which only a container runs": (record(sandboxes=(), containers=RUNNING), ["old"]),
    "one of which nothing runs is left": (record(sandboxes=(SandboxRecord(id="s1", ready=False),)), []),
    "another name is another pod": (record(name="db-n1"), []),
    "so is another namespace": (record(namespace="kube-system"), []),
    "the pod itself is spared": (record(uid="new"), []),
    "so is a pod that somebody wants": (record(uid="wanted"), []),
}


@pytest.mark.parametrize("found, expected", CASES.values(), ids=CASES.keys())
def test_who_is_ended(found: PodRecord, expected: list[str]) -> None:
    assert ended(found, desired=frozenset({"wanted"})) == expected


def test_all_copies_are_ended() -> None:
    assert ended(record("a"), record("b"), record("c", name="other")) == ["a", "b"]


def test_while_nobody_can_tell_what_runs_the_pod_waits() -> None:
    with pytest.raises(TryLater):
        ended(error=TryLater("cannot list"))
