"""Replays of the recorded plan tables: actions of one sync, sandboxes, restarts, grace periods and backoff."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import to_builtins

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import PodUID, ProbeResult
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.backoff.table import BackoffTable, Curve, restart_key
from podkeeper.rules.container.grace import KillReason, container_grace_seconds
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.container.restart import container_should_restart
from podkeeper.rules.plan import compute_pod_actions
from podkeeper.rules.plan.sandbox import sandbox_change
from tests.oracle.compare import Difference, Json, Replay, answers, differences

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _seconds(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds())


def _sandboxes(given: Json) -> tuple[SandboxRecord, ...]:
    return tuple(
        SandboxRecord(
            id=each["id"],
            ready=each["ready"],
            attempt=each["attempt"],
            network=NetworkMode(each["network"]),
            ip=each["ip"],
        )
        for each in given
    )


def _containers(given: Json, hashes: dict[str, str]) -> tuple[ContainerRecord, ...]:
    return tuple(
        ContainerRecord(
            id=each["id"],
            name=each["name"],
            state=RecordState(each["state"]),
            spec_hash=hashes.get(each["name"], "") if each["spec_hash_matches"] else "of another spec",
            restart_count=each["restart_count"],
            finished_at=_at(each["finished_at"]) if each["state"] == "exited" else None,
            exit_code=each["exit_code"],
            reason=each["reason"],
            message=each["message"],
        )
        for each in given
    )


def _compute_pod_actions(given: Json) -> Json:
    pod = msgspec.convert(given["pod"], Pod)
    hashes = {each.name: container_hash(each) for each in (*pod.spec.containers, *(pod.spec.init_containers or ()))}
    record = PodRecord(
        uid=pod.metadata.uid or "",
        ips=tuple(given["runtime"]["ips"]),
        sandboxes=_sandboxes(given["runtime"]["sandboxes"]),
        containers=_containers(given["runtime"]["containers"], hashes),
    )
    actions = to_builtins(
        compute_pod_actions(
            pod,
            record,
            {key: ProbeResult(value) for key, value in given["liveness"].items()},
            {key: ProbeResult(value) for key, value in given["startup"].items()},
            restart_all_containers=given["restart_all_containers"],
        )
    )
    actions["containers_to_kill"] = sorted(actions["containers_to_kill"], key=lambda kill: str(kill["id"]))
    return msgspec.json.decode(msgspec.json.encode(actions))


def _sandbox_changed(given: Json) -> Json:
    return to_builtins(sandbox_change(given["host_network"], _sandboxes(given["sandboxes"])))


def _container_should_restart(given: Json) -> Json:
    container = msgspec.convert(given["container"], Container)
    deletion = {"deletionTimestamp": "2000-01-01T00:00:00Z"} if given["pod_deleting"] else {}
    pod = msgspec.convert({"metadata": deletion, "spec": {"restartPolicy": given["pod_restart_policy"]}}, Pod)
    record = PodRecord(uid="", containers=_containers(given["statuses"], {}))
    return container_should_restart(container, pod, record.container(container.name))


def _container_grace_period(given: Json) -> Json:
    wire = {
        "metadata": {"deletionGracePeriodSeconds": given["deletion_grace_period_seconds"]},
        "spec": {"terminationGracePeriodSeconds": given["termination_grace_period_seconds"]},
    }
    container = msgspec.convert(
        {
            "livenessProbe": {"terminationGracePeriodSeconds": given["liveness_probe_grace"]},
            "startupProbe": {"terminationGracePeriodSeconds": given["startup_probe_grace"]},
        },
        Container,
    )
    return container_grace_seconds(msgspec.convert(wire, Pod), container, KillReason(given["kill_reason"]))


def _restart_backoff(given: Json, script: Json) -> Iterator[Difference]:
    shown_pod = re.fullmatch(r"(?P<name>.+)_(?P<namespace>.+)\((?P<uid>.+)\)", given["pod"])
    assert shown_pod is not None
    pod = msgspec.convert({"metadata": shown_pod.groupdict()}, Pod)
    curve = Curve(timedelta(seconds=given["initial_seconds"]), timedelta(seconds=given["max_seconds"]))
    table = BackoffTable(curve)
    for index, step in enumerate(script):
        now = _at(step["now"])
        if step["gc_before"]:
            table.collect(now)
        container = Container(name=given["container"], image=step["image"])
        exited = ContainerRecord(
            id="x", name=container.name, state=RecordState.EXITED, finished_at=_at(step["finished_at"])
        )
        held = table.begin_restart(pod, container, PodRecord(uid="", containers=(exited,)), now)
        got: Json = {key: step[key] for key in ("now", "finished_at", "gc_before", "image")}
        if held is None:
            key = restart_key(pod, container)
            delay = next(each.entry.delay for each in table.records(PodUID(shown_pod["uid"])) if each.key == key)
            got |= {"in_backoff": False, "message": "", "backoff_now": int(delay.total_seconds())}
        else:
            got |= {"in_backoff": True, "message": held.message, "error": held.reason}
            got |= {"backoff_until": _seconds(held.until)}
        yield from differences(step, got, f"step {index}")


TABLES: dict[str, Replay] = {
    "compute_pod_actions": answers(_compute_pod_actions),
    "sandbox_changed": answers(_sandbox_changed),
    "container_should_restart": answers(_container_should_restart),
    "container_grace_period": answers(_container_grace_period),
    "restart_backoff": _restart_backoff,
}
