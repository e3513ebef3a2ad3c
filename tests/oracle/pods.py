"""Replays of the recorded tables of the pod manager, mirror pods, relist and work queue."""

from collections.abc import Iterator

import msgspec

from podkeeper.engine.manager import PodManager
from podkeeper.engine.queue import WorkQueue
from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import LifecycleEvent, PodUID
from podkeeper.model.runtime import RecordState
from podkeeper.rules.relist import ListedPod, RelistState, complete_inspection, relist, request_reinspection, transition
from podkeeper.rules.static.mirror import is_mirror_pod_of, mirror_deletion, mirror_pod_for
from tests.oracle.compare import Difference, Json, Replay, answers, differences


def _pod(metadata: Json) -> Pod:
    return msgspec.convert({"metadata": metadata}, Pod)


def _uids(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(pod.metadata.uid or "" for pod in pods)


# The pod manager.


def _manager(_: Json, script: Json) -> Iterator[Difference]:
    manager = PodManager()
    for index, step in enumerate(script):
        {"update": manager.update, "remove": manager.remove}[step["op"]](_pod(step["pod"]))
        expected = step["expect"]
        yield from differences(expected, _manager_state(manager, expected), f"[{index}]")


def _manager_state(manager: PodManager, expected: Json) -> Json:
    translations = manager.translations()
    # The recording covers all test pods: KIND-N has the name pN.
    pods = {uid: _pod({"uid": uid, "name": f"p{uid[-1]}", "namespace": "ns"}) for uid in expected["translate_uid"]}
    mirrors = {uid: manager.mirror_of_pod(pod) for uid, pod in pods.items()}
    pod_to_mirror = {}
    for uid, mirror in translations.pod_to_mirror.items():
        choice = expected["pod_to_mirror"].get(uid)
        fits = isinstance(choice, dict) and mirror in choice["any_of"]
        pod_to_mirror[uid] = choice if fits else mirror or ""
    return {
        "pods": _uids(manager.pods()),
        "mirror_pods": _uids(manager.mirrors()),
        "orphaned_mirror_full_names": sorted(manager.orphaned_mirror_full_names()),
        "mirror_by_pod": {uid: mirror.metadata.uid for uid, mirror in mirrors.items() if mirror is not None},
        "translate_uid": {uid: manager.translate_uid(PodUID(uid)) for uid in pods},
        "pod_to_mirror": pod_to_mirror,
        "mirror_to_pod": dict(translations.mirror_to_pod),
    }


# Mirror pods. The API of the recording only checks that a name is unique.


def _create_mirror(given: Json) -> Json:
    existing = given["existing_in_api"]
    in_api = None if existing is None else _pod({"name": "p", "namespace": "ns", **existing})
    static = _pod({"name": "p", "namespace": "ns", "annotations": given["static_pod_annotations"]})
    try:
        mirror = mirror_pod_for(static, given["node_name"], None if given["node_unknown"] else given["node_uid"])
    except TryLater:
        refused = True
    else:
        refused = in_api is not None
        in_api = in_api or mirror
    return {"error": refused, "in_api_afterwards": None if in_api is None else _shown_in_api(in_api)}


def _shown_in_api(pod: Pod) -> Json:
    owners = pod.metadata.owner_references
    return {
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "annotations": pod.metadata.annotations,
        "ownerReferences": None if owners is None else [msgspec.to_builtins(owner) for owner in owners],
    }


def _delete_mirror(given: Json) -> Json:
    try:
        deletion = mirror_deletion(given["full_name"], given["uid"])
    except BadInput:
        return {"error": True, "deleted": False, "delete_call": None}
    options = deletion.options
    call = {
        "grace_period_seconds": options.grace_period_seconds,
        "uid_precondition": options.preconditions.uid if options.preconditions else None,
    }
    found = given["exists"] and (deletion.name, deletion.namespace) == ("p", "ns")
    return {"error": False, "deleted": found, "delete_call": call}


def _is_mirror_of(given: Json) -> Json:
    return is_mirror_pod_of(_pod(given["mirror"]), _pod(given["pod"]))


# Relisting.


def _state(text: str) -> RecordState | None:
    return None if text == "absent" else RecordState(text)


def _transition(given: Json) -> Json:
    return [kind.value for kind in transition(_state(given["old"]), _state(given["new"]))]


def _listing(given: Json) -> ListedPod:
    containers, sandboxes = (
        {found["id"]: RecordState(found["state"]) for found in given[part]} for part in ("containers", "sandboxes")
    )
    return ListedPod(PodUID(given["uid"]), containers, sandboxes)


def _relists(_: Json, script: Json) -> Iterator[Difference]:
    book = RelistState()
    for index, step in enumerate(script):
        for uid in step["reinspect_requested"]:
            book = request_reinspection(book, PodUID(uid))
        sent: list[LifecycleEvent] = []
        inspected, cache_changes = [], []
        if not step["list_fails"]:
            book, findings = relist(book, [_listing(pod) for pod in step["pods"]])
            for finding in findings:
                works = finding.uid not in step["inspect_fails"]
                if finding.listed is None:
                    cache_changes.append(f"delete:{finding.uid}")
                else:
                    inspected.append(finding.uid)
                    cache_changes.append(f"{'set' if works else 'set_error'}:{finding.uid}")
                book, events = complete_inspection(book, finding, inspected=works)
                sent += events
        got = {"events": _by_pod(sent), "inspected": sorted(inspected), "cache_changes": sorted(cache_changes)}
        yield from differences(step["expect"], got, f"[{index}]")


def _by_pod(events: list[LifecycleEvent]) -> Json:
    shown: dict[str, list[Json]] = {}
    for event in events:
        shown.setdefault(event.uid, []).append({"container": event.data or None, "type": event.type.value})
    return shown


# The work queue.


def _queue(_: Json, script: Json) -> Iterator[Difference]:
    now = 0.0
    queue = WorkQueue(lambda: now)
    for index, step in enumerate(script):
        match step["op"]:
            case "advance":
                now += step["seconds"]
            case "enqueue":
                queue.enqueue(PodUID(step["uid"]), step["delay"])
            case "get_work":
                yield from differences(step["expect"], sorted(queue.get_work()), f"[{index}]")
            case unknown:
                yield Difference(f"[{index}]", unknown, "no such step is known here")


TABLES: dict[str, Replay] = {
    "pod_manager": _manager,
    "create_mirror_pod": answers(_create_mirror),
    "delete_mirror_pod": answers(_delete_mirror),
    "is_mirror_pod_of": answers(_is_mirror_of),
    "pleg_events": answers(_transition),
    "pleg_relist": _relists,
    "work_queue": _queue,
}
