"""Which pods are stopped before a static pod starts."""

import asyncio

import pytest

from podkeeper.engine.manager import PodManager
from podkeeper.engine.static_conflicts import StaticConflicts
from podkeeper.model.errors import TryLater
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.testing import build
from tests.violations import violation

STATIC = build.pod("web-n1", namespace="default", uid="new")
READY = (SandboxRecord(id="s1", ready=True),)
RUNNING = (ContainerRecord(id="c1", name="app", state=RecordState.RUNNING),)


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


def stopped(*records: PodRecord, desired: frozenset[str] = frozenset(), error: TryLater | None = None) -> list[str]:
    """Return the UIDs of the pods that are stopped for the static pod."""
    killed: list[str] = []

    async def kill(found: PodRecord, grace_seconds: int) -> None:
        if grace_seconds != 1:
            raise violation(f"{found.uid} is killed with a grace period of {grace_seconds} s")
        killed.append(found.uid)

    pods = PodManager()
    for uid in desired:
        pods.update(build.pod(uid, namespace="ns", uid=uid))
    asyncio.run(StaticConflicts(runtime=Runtime(records, error), kill=kill, pods=pods).resolve(STATIC))
    return killed


CASES: dict[str, tuple[PodRecord, list[str]]] = {
    "a copy with a sandbox is stopped": (record(), ["old"]),
    "a copy with only a running container is stopped": (record(sandboxes=(), containers=RUNNING), ["old"]),
    "a copy without a running container or sandbox is kept": (
        record(sandboxes=(SandboxRecord(id="s1", ready=False),)),
        [],
    ),
    "a pod with another name is kept": (record(name="db-n1"), []),
    "a pod in another namespace is kept": (record(namespace="kube-system"), []),
    "the static pod itself is kept": (record(uid="new"), []),
    "a desired pod is kept": (record(uid="desired"), []),
}


@pytest.mark.parametrize("found, expected", CASES.values(), ids=CASES.keys())
def test_which_pods_are_stopped(found: PodRecord, expected: list[str]) -> None:
    assert stopped(found, desired=frozenset({"desired"})) == expected


def test_all_copies_are_stopped() -> None:
    assert stopped(record("a"), record("b"), record("c", name="other")) == ["a", "b"]


def test_a_failed_list_is_retried() -> None:
    with pytest.raises(TryLater):
        stopped(error=TryLater("cannot list"))
