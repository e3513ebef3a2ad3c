"""Replays of the recorded status manager scripts over `rules.status.publish` and `rules.status.revise`.

`Manager` is the least shell those rules can live in: dictionaries for the cache, the sent versions and
the API, no loop, no waiting. Every decision it obeys comes from the rules.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import assert_never

import msgspec

from podkeeper.engine.manager import PodManager
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.patch.strategic import apply
from podkeeper.rules.status.publish import (
    Acceptance,
    CachedStatus,
    Refused,
    Sending,
    Store,
    Stored,
    Unchanged,
    accept,
    accept_status,
    can_be_deleted,
    merged_status,
    needs_reconcile,
    sending,
    status_patch,
    versions_to_keep,
)
from podkeeper.rules.status.revise import ended_status, with_readiness, with_startup
from tests.oracle.compare import Difference, Json, differences


def plain(value: object) -> Json:
    """A value as JSON has it on the wire."""
    return msgspec.json.decode(msgspec.json.encode(value))


class ApiFailure(Exception):
    """A call that the script wants to fail."""


@dataclass
class Api:
    """The pods in the API, and what was asked of them."""

    pods: dict[str, Pod] = field(default_factory=dict)
    to_fail: dict[str, int] = field(default_factory=dict)
    calls: dict[str, list[Json]] = field(default_factory=dict)

    def call(self, name: str, verb: str, **details: Json) -> None:
        self.calls.setdefault(name, []).append({"verb": verb, **details})
        if self.to_fail.get(verb, 0):
            self.to_fail[verb] -= 1
            raise ApiFailure

    def get(self, name: str) -> Pod | None:
        self.call(name, "get")
        return self.pods.get(name)

    def patch_status(self, name: str, patch: Json) -> Pod:
        self.call(name, "patch", subresource="status", patch=patch)
        self.pods[name] = msgspec.convert(apply(plain(self.pods[name]), patch, "v1/Pod"), Pod)
        return self.pods[name]

    def delete(self, name: str, uid: str) -> None:
        self.call(name, "delete", grace_period_seconds=0, uid_precondition=uid)
        del self.pods[name]


@dataclass
class Manager:
    """The status manager without its loop."""

    api: Api = field(default_factory=Api)
    known: PodManager = field(default_factory=PodManager)
    cache: dict[str, CachedStatus] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    could_run: dict[str, bool] = field(default_factory=dict)
    now: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    signal: bool = False

    def set_status(self, pod: Pod, status: PodStatus) -> bool:
        cached, mirror = self.cache.get(uid_of(pod)), self.known.mirror_of_pod(pod)
        return self.keep(pod, accept_status(pod, status, cached, mirror, self.now))

    def revise(self, uid: str, step: Json) -> None:
        pod = self.known.pod_by_uid(PodUID(uid))
        cached = None if pod is None else self.cache.get(uid_of(pod))
        if pod is None or cached is None:
            return
        if step["op"] == "set_ready":
            revised = with_readiness(pod, cached.status, step["container_id"], step["value"])
        else:
            revised = with_startup(cached.status, step["container_id"], step["value"])
        if revised is not None:
            self.keep(pod, accept(pod, revised, cached, self.known.mirror_of_pod(pod), self.now))

    def terminate(self, pod: Pod) -> None:
        cached, mirror = self.cache.get(uid_of(pod)), self.known.mirror_of_pod(pod)
        last = ended_status(pod, None if cached is None else cached.status)
        self.keep(pod, accept(pod, last, cached, mirror, self.now, Store.AS_LAST))

    def keep(self, pod: Pod, acceptance: Acceptance) -> bool:
        match acceptance:
            case Stored(cached):
                self.cache[uid_of(pod)] = cached
                self.signal = True
                return True
            case Unchanged() | Refused():
                return False
            case _:
                assert_never(acceptance)

    def api_uid(self, uid: str) -> str | None:
        """The UID in the API of a cached pod; None: a static pod that has no mirror yet."""
        return self.known.translations().pod_to_mirror.get(PodUID(uid), PodUID(uid))

    def shown_pod(self, uid: str) -> Pod | None:
        """The pod whose status the API shows, as last seen."""
        pod = self.known.pod_by_uid(PodUID(uid))
        return self.known.mirror_of_pod(pod) if pod is not None and is_static_pod(pod) else pod

    def sync(self, every: bool) -> int:
        self.signal = False
        if every:
            mirrors = self.known.translations().mirror_to_pod
            self.sent = versions_to_keep(self.sent, self.cache.keys(), mirrors.keys())
        due = []
        for uid, cached in self.cache.items():
            api_uid = self.api_uid(uid)
            if api_uid is None:
                continue
            pod = self.known.pod_by_uid(PodUID(api_uid))
            reason = sending(cached, self.sent.get(api_uid), every=every, pod=pod, api_pod=self.shown_pod(uid))
            if reason is Sending.OVERWRITTEN:
                del self.sent[api_uid]
            if reason is not None:
                due.append((uid, cached))
        for uid, cached in due:
            try:
                self.send(uid, cached)
            except ApiFailure:
                continue
        return len(due)

    def send(self, uid: str, cached: CachedStatus) -> None:
        name = f"{cached.namespace}/{cached.name}"
        pod = self.api.get(name)
        if pod is None:
            return
        translated = self.known.translate_uid(PodUID(uid_of(pod)))
        if translated and translated != uid:
            del self.cache[uid]
            return
        could_run = self.could_run.get(uid_of(pod), False)
        merged = merged_status(pod, cached.status, could_run=could_run, now=self.now)
        self.cache[uid] = dataclasses.replace(cached, status=merged.cached)
        patch = status_patch(pod, merged.to_send)
        if patch is not None:
            pod = self.api.patch_status(name, patch)
        self.sent[uid_of(pod)] = cached.version
        self.cache[uid] = dataclasses.replace(self.cache[uid], changed_at=None)
        if can_be_deleted(pod, cached):
            self.api.delete(name, uid_of(pod))
            del self.cache[uid]


def uid_of(pod: Pod) -> str:
    return pod.metadata.uid or ""


def replay_script(script: Json) -> Iterator[Difference]:
    """Run one script and compare the state after every step."""
    manager = Manager()
    for index, step in enumerate(script["steps"]):
        before_api = {name: pod.status for name, pod in manager.api.pods.items()}
        before_cache = {uid: cached.status for uid, cached in manager.cache.items()}
        manager.api.calls = {}
        returned = perform(manager, step["do"])
        got = observed(manager, step["do"]["op"], before_api, before_cache) | returned
        yield from differences(comparable(step["expect"]), got, f"step {index} ({step['do']['op']})")


def perform(manager: Manager, step: Json) -> dict[str, Json]:
    match step:
        case {"op": "api_put", "pod": pod}:
            found = msgspec.convert(pod, Pod)
            manager.api.pods[f"{found.metadata.namespace}/{found.metadata.name}"] = found
        case {"op": "api_remove", "namespace": namespace, "name": name}:
            manager.api.pods.pop(f"{namespace}/{name}", None)
        case {"op": "pm_update", "pod": pod}:
            manager.known.update(msgspec.convert(pod, Pod))
        case {"op": "pm_remove", "pod": pod}:
            manager.known.remove(msgspec.convert(pod, Pod))
        case {"op": "set_status", "pod": pod, "status": status}:
            changed = manager.set_status(msgspec.convert(pod, Pod), msgspec.convert(status, PodStatus))
            return {"returned_changed": changed}
        case {"op": "set_ready" | "set_started", "uid": uid}:
            manager.revise(uid, step)
        case {"op": "terminate", "pod": pod}:
            manager.terminate(msgspec.convert(pod, Pod))
        case {"op": "remove_orphans", "uids": uids}:
            manager.cache = {uid: cached for uid, cached in manager.cache.items() if uid in (uids or ())}
        case {"op": "sync", "all": every}:
            return {"returned_syncs": manager.sync(every)}
        case {"op": "could_run", "uid": uid, "value": value}:
            manager.could_run[uid] = value
        case {"op": "advance", "seconds": seconds}:
            manager.now += timedelta(seconds=seconds)
        case {"op": "api_fail", "verb": verb}:
            manager.api.to_fail[verb] = manager.api.to_fail.get(verb, 0) + 1
        case _:
            raise ValueError(f"cannot perform {step['op']!r}: no such step is known here")
    return {}


def observed(
    manager: Manager, op: str, before_api: dict[str, PodStatus], before_cache: dict[str, PodStatus]
) -> dict[str, Json]:
    """The state of the manager as the scripts describe it."""
    needs = {}
    for uid, cached in manager.cache.items():
        api_uid = manager.api_uid(uid)
        if api_uid is None:
            continue
        pod = manager.known.pod_by_uid(PodUID(api_uid))
        own, shown = manager.known.pod_by_uid(PodUID(uid)), manager.shown_pod(uid)
        needs[uid] = {
            "needs_update": sending(cached, manager.sent.get(api_uid), every=True, pod=pod, api_pod=None) is not None,
            "needs_reconcile": shown is not None and needs_reconcile(shown, cached),
            "can_be_deleted": own is not None and can_be_deleted(own, cached),
        }
    changed_api = {
        name: plain(manager.api.pods[name].status) if name in manager.api.pods else None
        for name in {*before_api, *manager.api.pods}
        if op == "sync" and (name not in manager.api.pods or before_api[name] != manager.api.pods[name].status)
    }
    changed_cache = {
        uid: plain(cached.status)
        for uid, cached in manager.cache.items()
        if plain(before_cache.get(uid)) != plain(cached.status)
    }
    return {
        "api_actions": manager.api.calls,
        "cache": {uid: {"version": each.version, "finished": each.finished} for uid, each in manager.cache.items()},
        "changed_cached_statuses": changed_cache,
        "changed_api_statuses": changed_api,
        "sent_versions": dict(manager.sent),
        "signal": manager.signal,
        "needs": needs,
    }


def comparable(expect: Json) -> Json:
    """What a script expects; what sending did to the cache counts like any other change of it."""
    side_effect = expect.get("cached_status_side_effect", {})
    rest = {key: value for key, value in expect.items() if key != "cached_status_side_effect"}
    return {
        **rest,
        "changed_cached_statuses": {**expect["changed_cached_statuses"], **side_effect},
    }


SCRIPTS = {"status": replay_script}
