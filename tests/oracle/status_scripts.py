"""Replays of the recorded status manager scripts with the real status manager, in virtual time.

The replay runs the `sync` steps of the scripts. Nothing runs in the background. The API is a dictionary that records
calls.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from podkeeper.engine.api_sender import ApiSender
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.manager import PodManager
from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import ApiUnavailable, NotFound
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.static.mirror import is_static_pod
from podkeeper.rules.status.publish import can_be_deleted, needs_reconcile, send_reason
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.engine.fake_api import FakeApi, patched
from tests.oracle.compare import Difference, Json, differences

K = TypeVar("K", bound=Wire)

logging.getLogger("podkeeper").addHandler(logging.NullHandler())  # scripts contain many failures

SCRIPTS_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)


def plain(value: object) -> Json:
    return msgspec.json.decode(msgspec.json.encode(value))


@dataclass
class ScriptApi(FakeApi):
    """The pods in the API, and the calls."""

    pods: dict[str, Pod] = field(default_factory=dict)
    to_fail: dict[str, int] = field(default_factory=dict)
    calls: dict[str, list[Json]] = field(default_factory=dict)

    def call(self, name: str, verb: str, **details: Json) -> None:
        self.calls.setdefault(name, []).append({"verb": verb, **details})
        if self.to_fail.get(verb, 0):
            self.to_fail[verb] -= 1
            raise ApiUnavailable(f"cannot {verb} {name}: the script makes it fail")

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        self.call(f"{namespace}/{name}", "get")
        found = self.pods.get(f"{namespace}/{name}")
        if not isinstance(found, kind):
            raise NotFound(f"cannot get {namespace}/{name}: there is none")
        return found

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        self.call(f"{namespace}/{name}", "patch", subresource="status", patch=patch)
        key = f"{namespace}/{name}"
        found = self.pods[key] = patched(self.pods[key], patch)
        assert isinstance(found, kind)
        return found

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        self.call(f"{namespace}/{name}", "delete", grace_period_seconds=grace_seconds, uid_precondition=uid)
        del self.pods[f"{namespace}/{name}"]


class Harness:
    """A status manager and the modules it uses."""

    def __init__(self) -> None:
        self.api = ScriptApi()
        self.known = PodManager()
        self.could_run: dict[str, bool] = {}
        clock = VirtualClock()
        clock.jump((SCRIPTS_BEGIN - BEGINNING).total_seconds())
        self.manager = StatusManager(
            api=self.api,
            pods=self.known,
            could_run=lambda uid: self.could_run.get(uid, False),
            clock=clock,
            sender=ApiSender(clock=clock, what="status of pod"),
            checkpoints=Checkpoints(None, "status/"),
        )

    def api_uid(self, uid: PodUID) -> PodUID | None:
        """Return the UID of a cached pod in the API. None for a static pod without a mirror pod."""
        return self.known.translations().pod_to_mirror.get(uid, uid)

    def shown_pod(self, uid: PodUID) -> Pod | None:
        """Return the pod whose status is in the API, as last seen."""
        pod = self.known.pod_by_uid(uid)
        return self.known.mirror_of_pod(pod) if pod is not None and is_static_pod(pod) else pod


def replay_script(script: Json) -> Iterator[Difference]:
    """Run one script and compare the state after every step."""
    found, _ = simulate(replay_steps(script))
    yield from found


async def replay_steps(script: Json) -> list[Difference]:
    harness = Harness()
    found: list[Difference] = []
    for index, step in enumerate(script["steps"]):
        before_api = {name: pod.status for name, pod in harness.api.pods.items()}
        before_cache = {uid: cached.status for uid, cached in harness.manager.cached.items()}
        harness.api.calls = {}
        returned = await perform(harness, step["do"])
        got = observed(harness, step["do"]["op"], before_api, before_cache) | returned
        found.extend(differences(comparable(step["expect"]), got, f"step {index} ({step['do']['op']})"))
    return found


async def perform(harness: Harness, step: Json) -> dict[str, Json]:
    manager = harness.manager
    match step:
        case {"op": "api_put", "pod": pod}:
            found = msgspec.convert(pod, Pod)
            harness.api.pods[f"{found.metadata.namespace}/{found.metadata.name}"] = found
        case {"op": "api_remove", "namespace": namespace, "name": name}:
            harness.api.pods.pop(f"{namespace}/{name}", None)
        case {"op": "pm_update", "pod": pod}:
            harness.known.update(msgspec.convert(pod, Pod))
        case {"op": "pm_remove", "pod": pod}:
            harness.known.remove(msgspec.convert(pod, Pod))
        case {"op": "set_status", "pod": pod, "status": status}:
            changed = manager.set_pod_status(msgspec.convert(pod, Pod), msgspec.convert(status, PodStatus))
            return {"returned_changed": changed}
        case {"op": "set_ready", "uid": uid, "container_id": container_id, "value": value}:
            manager.set_container_readiness(uid, container_id, value)
        case {"op": "set_started", "uid": uid, "container_id": container_id, "value": value}:
            manager.set_container_startup(uid, container_id, value)
        case {"op": "terminate", "pod": pod}:
            manager.terminate_pod(msgspec.convert(pod, Pod))
        case {"op": "remove_orphans", "uids": uids}:
            manager.remove_orphaned_statuses(uids or ())
        case {"op": "sync", "all": every}:
            return {"returned_syncs": await manager.sync_batch(every)}
        case {"op": "could_run", "uid": uid, "value": value}:
            harness.could_run[uid] = value
        case {"op": "advance", "seconds": seconds}:
            await asyncio.sleep(seconds)
        case {"op": "api_fail", "verb": verb}:
            harness.api.to_fail[verb] = harness.api.to_fail.get(verb, 0) + 1
        case _:
            raise ValueError(f"cannot perform {step['op']!r}: no such step is known here")
    return {}


def observed(
    harness: Harness, op: str, before_api: dict[str, PodStatus], before_cache: dict[PodUID, PodStatus]
) -> dict[str, Json]:
    """Return the state of the manager in the form of the scripts."""
    manager, api_pods = harness.manager, harness.api.pods
    needs = {}
    for uid, cached in manager.cached.items():
        api_uid = harness.api_uid(uid)
        if api_uid is None:
            continue
        pod, sent = harness.known.pod_by_uid(api_uid), manager.sent_versions.get(api_uid)
        own, shown = harness.known.pod_by_uid(uid), harness.shown_pod(uid)
        needs[uid] = {
            "needs_update": send_reason(cached, sent, every=True, pod=pod, api_pod=None) is not None,
            "needs_reconcile": shown is not None and needs_reconcile(shown, cached),
            "can_be_deleted": own is not None and can_be_deleted(own, cached),
        }
    changed_api = {
        name: plain(api_pods[name].status) if name in api_pods else None
        for name in {*before_api, *api_pods}
        if op == "sync" and (name not in api_pods or before_api[name] != api_pods[name].status)
    }
    changed_cache = {
        uid: plain(cached.status)
        for uid, cached in manager.cached.items()
        if plain(before_cache.get(uid)) != plain(cached.status)
    }
    return {
        "api_actions": harness.api.calls,
        "cache": {uid: {"version": each.version, "finished": each.finished} for uid, each in manager.cached.items()},
        "changed_cached_statuses": changed_cache,
        "changed_api_statuses": changed_api,
        "sent_versions": dict(manager.sent_versions),
        "signal": manager.has_changes,
        "needs": needs,
    }


def comparable(expect: Json) -> Json:
    """Return the expectation of a script. A cache change by a send counts like any other."""
    side_effect = expect.get("cached_status_side_effect", {})
    rest = {key: value for key, value in expect.items() if key != "cached_status_side_effect"}
    return {
        **rest,
        "changed_cached_statuses": {**expect["changed_cached_statuses"], **side_effect},
    }


SCRIPTS = {"status": replay_script}
