"""Replays of the recorded status tables: phase, conditions, containers, publishing."""

from datetime import UTC, datetime, timedelta

import msgspec

from podkeeper.model.k8s.core import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_SOURCE_ANNOTATION
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.model.times import format_time, parse_time
from podkeeper.rules.evict import Eviction, deadline_eviction
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.status.conditions import (
    containers_ready_condition,
    initialized_condition,
    readiness_is_stale,
    ready_condition,
)
from podkeeper.rules.status.containers import StartFailure
from podkeeper.rules.status.normalise import equal_by_kubelet, normalised
from podkeeper.rules.status.phase import phase_of
from podkeeper.rules.status.pod import NodeView, PodView, api_pod_status
from podkeeper.rules.status.publish import illegal_transition, merged_status
from tests.oracle.compare import Json, Replay, answers
from tests.oracle.status_scripts import SCRIPTS, plain

__all__ = ["DECISION_TABLES", "SCRIPTS", "TABLES"]

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
NODE = NodeView(runtime_name="containerd")


def moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


def statuses(given: Json) -> tuple[ContainerStatus, ...]:
    return msgspec.convert(given, tuple[ContainerStatus, ...])


def pod_phase(given: Json) -> Json:
    annotations = {CONFIG_SOURCE_ANNOTATION: "file" if given["static_pod"] else "api"}
    pod = Pod(metadata=ObjectMeta(annotations=annotations), spec=msgspec.convert(given["spec"], PodSpec))
    return phase_of(
        pod,
        statuses(given["container_statuses"]),
        pod_is_terminal=given["pod_is_terminal"],
        initialized=given["regular_container_started"],
    ).value


def container_record(given: Json) -> ContainerRecord:
    return ContainerRecord(
        id=given["id"],
        name=given["name"],
        state=RecordState(given["state"]),
        image=f"registry.example/{given['name']}:v1",
        image_id=f"sha256:{given['name']}",
        restart_count=given["restart_count"],
        created_at=moment(given["created_at"]),
        started_at=moment(given["started_at"]),
        finished_at=moment(given["finished_at"]),
        exit_code=given["exit_code"],
        reason=given["reason"],
        message=given["message"],
    )


def pod_record(uid: str, given: Json) -> PodRecord:
    return PodRecord(
        uid=uid,
        ips=tuple(given["ips"]),
        sandboxes=tuple(
            SandboxRecord(
                id=each["id"],
                ready=each["ready"],
                attempt=each["attempt"],
                network=NetworkMode(each["network"]),
                ip=each["ip"],
            )
            for each in given["sandboxes"]
        ),
        containers=tuple(map(container_record, given["containers"])),
    )


def complete_status(given: Json) -> Json:
    pod = msgspec.convert(given["pod"], Pod)
    cached, evict = given["cached_status"], given["evict"]
    view = PodView(
        record=pod_record(pod.metadata.uid or "", given["runtime"]),
        probes=ProbeView(agent_started=EPOCH),
        published=None if cached is None else msgspec.convert(cached, PodStatus),
        start_failures={
            name: StartFailure(failure["reason"], failure["message"])
            for name, failure in given["waiting_reasons"].items()
        },
        eviction=None if evict is None else Eviction(evict["reason"], evict["message"]),
        pod_is_terminal=given["pod_is_terminal"],
    )
    return plain(api_pod_status(pod, view, NODE))


def active_deadline(given: Json) -> Json:
    def status(start: int | None) -> PodStatus:
        return PodStatus(start_time=None if start is None else format_time(EPOCH + timedelta(seconds=start)))

    spec = PodSpec(active_deadline_seconds=given["active_deadline_seconds"])
    pod = Pod(spec=spec, status=status(given["api_start"]))
    published = status(given["cached_start"]) if given["has_cached_status"] else None
    eviction = deadline_eviction(pod, published, EPOCH + timedelta(seconds=given["now"]))
    return {
        "should_sync": eviction is not None,
        "evict": eviction is not None,
        "reason": eviction.reason if eviction else "",
        "message": eviction.message if eviction else "",
    }


def container_state_transition(given: Json) -> Json:
    old, new = (msgspec.convert(given[each], PodStatus) for each in ("old", "new"))
    return illegal_transition(msgspec.convert(given["spec"], PodSpec), old, new)


def equal_statuses(given: Json) -> Json:
    old, new = (msgspec.convert(given[each], PodStatus) for each in ("old", "new"))
    return equal_by_kubelet(old, new)


def status_to_send(given: Json) -> Json:
    pod = Pod(
        metadata=ObjectMeta(generation=given["pod_generation"]), status=msgspec.convert(given["api_status"], PodStatus)
    )
    new = msgspec.convert(given["new_status"], PodStatus)
    now = parse_time(given["now"]) if isinstance(given["now"], str) else EPOCH + timedelta(seconds=given["now"])
    return plain(merged_status(pod, new, could_run=given["could_have_running_containers"], now=now).to_send)


def normal_form(given: Json) -> Json:
    spec = PodSpec(
        containers=tuple(Container(name=f"c{index}") for index in range(given["spec_containers"])),
        init_containers=tuple(Container(name=name) for name in given["spec_init_containers"] or ()),
    )

    def status(name: str, message_length: int = 0) -> ContainerStatus:
        ended = ContainerStateTerminated(message="m" * message_length)
        return ContainerStatus(name=name, state=ContainerState(terminated=ended))

    before = given["status"]
    after = normalised(
        spec,
        PodStatus(
            container_statuses=tuple(map(status, before["order"] or (), before["message_lengths"] or ())),
            init_container_statuses=tuple(map(status, before["init_order"] or ())),
        ),
    )
    return {
        "order": [each.name for each in after.container_statuses or ()] or None,
        "init_order": [each.name for each in after.init_container_statuses or ()] or None,
        "message_lengths": [
            len(each.state.terminated.message or "")
            for each in after.container_statuses or ()
            if each.state.terminated is not None
        ]
        or None,
    }


def generated_conditions(given: Json) -> Json:
    pod = Pod(metadata=ObjectMeta(generation=given["generation"]), spec=msgspec.convert(given["spec"], PodSpec))
    conditions, old = (
        msgspec.convert(given[each], tuple[PodCondition, ...] | None) for each in ("conditions", "old_conditions")
    )
    containers = None if given["container_statuses"] is None else statuses(given["container_statuses"])
    phase = given["phase"]
    return plain(
        {
            "ContainersReady": containers_ready_condition(pod, containers, phase),
            "Ready": ready_condition(pod, conditions, containers, phase),
            "Initialized": initialized_condition(pod, old, containers, phase),
        }
    )


def stale_readiness(given: Json) -> Json:
    return readiness_is_stale(msgspec.convert(given["pod"], Pod))


DECISION_TABLES: dict[str, Replay] = {
    "pod_phase": answers(pod_phase),
    "api_pod_status": answers(complete_status),
    "active_deadline": answers(active_deadline),
}

TABLES: dict[str, Replay] = {
    "container_state_transition": answers(container_state_transition),
    "equal_by_kubelet": answers(equal_statuses),
    "merge_status": answers(status_to_send),
    "normalize": answers(normal_form),
    "conditions": answers(generated_conditions),
    "need_to_reconcile_readiness": answers(stale_readiness),
}
