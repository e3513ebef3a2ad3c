"""Replay of the recorded sequences on the pod storage."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_FIRST_SEEN_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    FILE_SOURCE,
    HTTP_SOURCE,
    Op,
    PodEvent,
    PodUpdate,
)
from podkeeper.model.times import parse_time
from tests.oracle.compare import Difference, Json, differences

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
SOURCES = (API_SOURCE, FILE_SOURCE, HTTP_SOURCE)


def _pod(given: Json) -> Pod:
    """A pod with the recorded texts for spec and status in one field of each."""
    metadata = ObjectMeta(
        uid=given["uid"],
        name=given["name"],
        namespace=given["namespace"],
        annotations=given["annotations"],
        labels=given["labels"],
        deletion_timestamp=given["deletion_timestamp"],
        deletion_grace_period_seconds=given["deletion_grace_period_seconds"],
    )
    return Pod(metadata=metadata, spec=PodSpec(node_name=given["spec"]), status=PodStatus(message=given["status"]))


def _shown(pod: Pod) -> Json:
    metadata = pod.metadata
    annotations = dict(metadata.annotations or {})
    seen = annotations.get(CONFIG_FIRST_SEEN_ANNOTATION, "user")
    if not seen.startswith("user"):
        annotations[CONFIG_FIRST_SEEN_ANNOTATION] = f"step:{int((parse_time(seen) - EPOCH).total_seconds())}"
    return {
        "uid": metadata.uid,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "annotations": annotations,
        "labels": metadata.labels,
        "deletion_timestamp": metadata.deletion_timestamp,
        "deletion_grace_period_seconds": metadata.deletion_grace_period_seconds,
        "spec": pod.spec.node_name,
        "status": pod.status.message,
    }


def _sorted(pods: Iterable[Pod]) -> list[Json]:
    def key(pod: Json) -> tuple[str, str, str]:
        return pod["annotations"].get(CONFIG_SOURCE_ANNOTATION, ""), pod["uid"], pod["name"]

    return sorted((_shown(pod) for pod in pods), key=key)


def _shown_update(update: PodUpdate) -> Json:
    ordered = update.op not in (Op.SET, Op.REMOVE)
    pods = [_shown(pod) for pod in update.pods] if ordered else _sorted(update.pods)
    return {"op": update.op.value, "source": update.source, "pods": pods}


def _shown_event(event: PodEvent) -> Json:
    return {"uid": event.uid, "type": event.type.value, "reason": event.reason, "message": event.message}


def replay_sequence(sequence: Json) -> Iterator[Difference]:
    """Run a sequence step by step on a new storage. The time is the number of the step in seconds."""
    updates: list[PodUpdate] = []
    events: list[PodEvent] = []
    now = EPOCH
    storage = PodStorage(emit=updates.append, record_event=events.append, now=lambda: now, mode=sequence["mode"])
    for index, step in enumerate(sequence["steps"]):
        now = EPOCH + timedelta(seconds=index)
        updates.clear()
        events.clear()
        do = step["do"]
        if do["op"] == "SYNC":
            storage.sync()
        else:
            storage.merge(PodUpdate(Op(do["op"]), tuple(_pod(pod) for pod in do["pods"]), do["source"]))
        got = {
            "emitted": [_shown_update(update) for update in updates],
            "events": [_shown_event(event) for event in events],
            "merged_state": _sorted(storage.merged_state()),
            "seen_sources": {source: source in storage.seen_sources for source in SOURCES},
            "seen_all_three": storage.has_seen(SOURCES),
        }
        yield from differences(step["expect"], got, f"steps[{index}]")


SCRIPTS = {"podstorage": replay_sequence}
