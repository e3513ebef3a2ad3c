"""The columns of a pod: the same values as kubectl prints for the same objects."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from podkeeper.app.local.pod_table import human_duration, pods_table, summary_of
from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodReadinessGate,
    PodStatus,
)
from podkeeper.testing.build import container, pod

NOW = datetime(2026, 11, 15, 10, 0, tzinfo=UTC)
RUNNING = ContainerState(running=ContainerStateRunning(started_at="2026-11-15T09:00:00Z"))
DONE = ContainerState(terminated=ContainerStateTerminated(exit_code=0, reason="Completed"))


def waits(reason: str, message: str | None = None) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))


def ended(code: int, reason: str | None = None, signal: int | None = None) -> ContainerState:
    end = ContainerStateTerminated(exit_code=code, reason=reason, signal=signal, finished_at="2026-11-15T09:59:30Z")
    return ContainerState(terminated=end)


def status(
    state: ContainerState,
    *,
    name: str = "app",
    ready: bool = False,
    restarts: int = 0,
    last: ContainerState | None = None,
    started: bool | None = None,
) -> ContainerStatus:
    return ContainerStatus(
        name=name,
        state=state,
        ready=ready,
        restart_count=restarts,
        last_state=last or ContainerState(),
        started=started,
    )


def pod_with(
    *statuses: ContainerStatus,
    inits: tuple[ContainerStatus, ...] = (),
    sidecars: tuple[str, ...] = (),
    phase: str = "Running",
    conditions: tuple[str, ...] = (),
    deleted: bool = False,
    reason: str | None = None,
    message: str | None = None,
) -> Pod:
    return pod(
        "p",
        *(container(each.name) for each in statuses),
        init=tuple(container(each.name, sidecar=each.name in sidecars) for each in inits),
        deleted="2026-11-15T10:00:30Z" if deleted else False,
        status=PodStatus(
            phase=phase,
            reason=reason,
            message=message,
            container_statuses=statuses,
            init_container_statuses=inits,
            conditions=tuple(PodCondition(type=each, status="True") for each in conditions),
        ),
    )


SIDECAR = status(RUNNING, name="side", ready=True, started=True, restarts=2)
CASES: dict[str, tuple[Pod, str, str, str]] = {
    "nothing yet": (pod_with(phase="Pending"), "0/1", "Pending", "0"),
    "running and ready": (pod_with(status(RUNNING, ready=True)), "1/1", "Running", "0"),
    "running and not ready": (pod_with(status(RUNNING)), "0/1", "Running", "0"),
    "crashes": (
        pod_with(status(waits("CrashLoopBackOff"), restarts=4, last=ended(1, "Error"))),
        "0/1",
        "CrashLoopBackOff",
        "4 (30s ago)",
    ),
    "failed": (pod_with(status(ended(2, "Error")), phase="Failed"), "0/1", "Error", "0"),
    "terminated by a signal without a reason": (
        pod_with(status(ended(137, signal=9)), phase="Failed"),
        "0/1",
        "Signal:9",
        "0",
    ),
    "terminated without a reason": (pod_with(status(ended(2)), phase="Failed"), "0/1", "ExitCode:2", "0"),
    "succeeded": (pod_with(status(DONE), phase="Succeeded"), "0/1", "Completed", "0"),
    "one completed, one runs": (
        pod_with(status(DONE), status(RUNNING, name="b", ready=True), conditions=("Ready",)),
        "1/2",
        "Running",
        "0",
    ),
    "one completed, one runs, not ready": (
        pod_with(status(DONE), status(RUNNING, name="b", ready=True)),
        "1/2",
        "NotReady",
        "0",
    ),
    "one completed, one failed": (pod_with(status(DONE), status(ended(1, "Error"), name="b")), "0/2", "Error", "0"),
    "first init container": (
        pod_with(status(waits("PodInitializing")), inits=(status(RUNNING, name="i"),), phase="Pending"),
        "0/1",
        "Init:0/1",
        "0",
    ),
    "second init container fails": (
        pod_with(
            status(waits("PodInitializing")),
            inits=(status(DONE, name="i"), status(ended(1, "Error"), name="j", restarts=3, last=ended(1))),
            phase="Pending",
        ),
        "0/1",
        "Init:Error",
        "3 (30s ago)",
    ),
    "init container crashes": (
        pod_with(inits=(status(waits("CrashLoopBackOff"), name="i"),), phase="Pending"),
        "0/1",
        "Init:CrashLoopBackOff",
        "0",
    ),
    "a sidecar counts": (
        pod_with(status(RUNNING, ready=True), inits=(SIDECAR,), sidecars=("side",), conditions=("Initialized",)),
        "2/2",
        "Running",
        "2",
    ),
    "being deleted": (pod_with(status(RUNNING, ready=True), deleted=True), "1/1", "Terminating", "0"),
    "deleted and already terminated": (
        pod_with(status(DONE), phase="Succeeded", deleted=True),
        "0/1",
        "Completed",
        "0",
    ),
    "rejected": (pod_with(phase="Failed", reason="OutOfcpu"), "0/1", "OutOfcpu", "0"),
    "a sidecar that is not ready does not count": (
        pod_with(
            status(RUNNING, ready=True),
            inits=(status(RUNNING, name="side", started=True),),
            sidecars=("side",),
            conditions=("Initialized",),
        ),
        "1/2",
        "Running",
        "0",
    ),
    "deleted from a lost node": (pod_with(status(RUNNING), deleted=True, reason="NodeLost"), "0/1", "Unknown", "0"),
}


@pytest.mark.parametrize("shown, ready, word, restarts", CASES.values(), ids=CASES.keys())
def test_the_columns_of_kubectl(shown: Pod, ready: str, word: str, restarts: str) -> None:
    summary = summary_of(shown)
    assert (summary.ready_of_total(), summary.status, summary.restarts_text(NOW)) == (ready, word, restarts)


DURATIONS = {
    -5: "<invalid>", -1: "0s", 0: "0s", 119: "119s", 120: "2m", 125: "2m5s", 599: "9m59s", 600: "10m", 630: "10m",
    10_799: "179m", 10_800: "3h", 11_000: "3h3m", 28_800: "8h", 172_799: "47h", 172_800: "2d", 180_000: "2d2h",
    691_200: "8d", 694_800: "8d", 86_400 * 400: "400d", 86_400 * 730: "2y", 86_400 * 740: "2y10d", 86_400 * 3000: "8y",
}  # fmt: skip


@pytest.mark.parametrize("seconds, expected", DURATIONS.items())
def test_durations_have_the_format_of_kubectl(seconds: int, expected: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize("met, expected", [((), "0/2"), (("a",), "1/2"), (("a", "b"), "2/2")])
def test_the_column_of_readiness_gates(met: tuple[str, ...], expected: str) -> None:
    gates = tuple(PodReadinessGate(condition_type=each) for each in "ab")
    shown = pod_with(status(RUNNING), conditions=met)
    gated = replace(shown, spec=replace(shown.spec, readiness_gates=gates))
    table = pods_table([(gated, ""), (shown, "")], NOW)
    assert table.column_definitions[8].name == "Readiness Gates"
    assert [row.cells[8] for row in table.rows] == [expected, "<none>"]
