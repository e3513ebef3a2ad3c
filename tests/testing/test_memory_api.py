"""The in-memory API behaves like an API server and injects faults. `tests/contracts` checks the API port."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.model.api import ObjectEvent, WatchType
from podkeeper.model.errors import AgentError, ApiUnavailable, BadInput, Conflict, Gone, NotFound
from podkeeper.model.k8s.core import ConfigMap, Node, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.testing import build
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.memory_watch import Watch
from podkeeper.testing.virtual_time import VirtualClock, simulate

pod = partial(build.pod, uid="", node="n1", grace=None)


def event_of(watch: Watch[Pod]) -> Coroutine[Any, Any, str]:
    """Return the type of the next event and the name of its object."""

    async def read() -> str:
        event: ObjectEvent[Pod] = await anext(watch)
        return f"{event.type} {event.object.metadata.name}"

    return read()


async def error_of(call: Coroutine[Any, Any, object]) -> type[AgentError] | None:
    try:
        await call
    except AgentError as error:
        return type(error)
    return None


# ---- objects ----


def test_a_created_pod_is_defaulted_pending_and_of_the_first_generation() -> None:
    async def scenario() -> Pod:
        api = MemoryApi(VirtualClock())
        return await api.create(pod(phase="Running", uid="mine", metadata={"generation": 7}))

    made = simulate(scenario())[0]
    assert (made.status.phase, made.status.qos_class) == ("Pending", "BestEffort")
    assert (made.spec.restart_policy, made.spec.termination_grace_period_seconds) == ("Always", 30)
    assert made.metadata.generation == 1
    assert made.metadata.uid != "mine"
    assert made.metadata.creation_timestamp == "2026-01-01T00:00:00Z"


def test_put_keeps_the_given_object() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        given = pod(phase="Running", uid="mine", created="2020-01-01T00:00:00Z")
        put = api.put(given)
        assert (put.status.phase, put.metadata.uid) == ("Running", "mine")
        assert put.metadata.creation_timestamp == "2020-01-01T00:00:00Z"
        assert api.peek(Pod, "web", "default") is put
        assert api.objects(Pod) == (put,)
        again = api.put(replace(given, metadata=replace(given.metadata, uid=None)))
        assert again.metadata.uid == "mine"
        changed = api.replace_spec("web", replace(put.spec, active_deadline_seconds=5))
        assert (changed.spec.active_deadline_seconds, changed.metadata.generation) == (5, 2)
        assert changed.status == put.status

    simulate(scenario())


def test_putting_another_uid_replaces_the_object() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        watch = api.watch(Pod, "1")
        api.put(pod(uid="first"))
        api.put(pod(uid="second"))
        events = [await anext(watch) for _ in range(3)]
        assert [(event.type, event.object.metadata.uid) for event in events] == [
            (WatchType.ADDED, "first"),
            (WatchType.DELETED, "first"),
            (WatchType.ADDED, "second"),
        ]

    simulate(scenario())


def test_objects_without_a_namespace_get_the_default_one_unless_cluster_scoped() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        await api.create(Node(metadata=ObjectMeta(name="n1", namespace="ignored")))
        await api.create(ConfigMap(metadata=ObjectMeta(name="c"), data={"a": "b"}))
        assert (await api.get(Node, "n1")).metadata.namespace is None
        assert (await api.get(ConfigMap, "c", "default")).data == {"a": "b"}
        assert await error_of(api.get(ConfigMap, "c", "other")) is NotFound

    simulate(scenario())


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a status that is not an object": ("patch_status", {"status": 3}),
    "a phase that is not a string": ("patch_status", {"status": {"phase": 3}}),
    "metadata that is not an object": ("patch_status", {"metadata": ["a"]}),
    "labels that are not a map": ("patch", {"metadata": {"labels": ["a"]}}),
    "containers without their merge key": ("patch", {"spec": {"containers": [{"image": "x"}]}}),
}


@pytest.mark.parametrize("method, patch", BAD.values(), ids=BAD.keys())
def test_an_invalid_patch_is_rejected_and_changes_nothing(method: str, patch: dict[str, Any]) -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        made = api.put(pod())
        with pytest.raises(BadInput):
            await getattr(api, method)(Pod, "web", patch, "default")
        assert api.peek(Pod, "web", "default") is made

    simulate(scenario())


def test_an_object_needs_a_name_and_metadata() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        assert await error_of(api.create(Pod())) is BadInput
        assert await error_of(api.create(PodSpec())) is BadInput
        assert await error_of(api.patch_status(ConfigMap, "c", {}, "default")) is NotFound
        api.put(ConfigMap(metadata=ObjectMeta(name="c")))
        assert await error_of(api.patch_status(ConfigMap, "c", {"status": {}}, "default")) is BadInput

    simulate(scenario())


def test_no_patch_changes_the_identity_or_the_deletion_of_an_object() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        made = api.put(pod())
        api.mark_deleted(Pod, "web", "default")
        marked = api.peek(Pod, "web", "default")
        assert marked is not None
        wish = {
            "metadata": {
                "name": "x",
                "creationTimestamp": None,
                "deletionTimestamp": None,
                "generation": 99,
                "annotations": {"a": "b"},
            }
        }
        for patched in (await api.patch(Pod, "web", wish), await api.patch_status(Pod, "web", wish)):
            expected = replace(
                marked.metadata, annotations={"a": "b"}, resource_version=patched.metadata.resource_version
            )
            assert patched.metadata == expected
        assert made.metadata.generation == 1

    simulate(scenario())


def test_a_patch_of_an_older_version_is_a_conflict() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        old = api.put(pod())
        patch = {"metadata": {"resourceVersion": old.metadata.resource_version, "labels": {"a": "b"}}}
        await api.patch(Pod, "web", patch, "default")
        assert await error_of(api.patch(Pod, "web", patch, "default")) is Conflict

    simulate(scenario())


# ---- deletion ----

DELETIONS: dict[str, tuple[Pod, list[int | None], tuple[int, str] | None]] = {
    "the default is the grace period of the spec": (pod(grace=40), [None], (40, "2026-01-01T00:00:50Z")),
    "the grace period of the request takes precedence": (pod(grace=40), [5], (5, "2026-01-01T00:00:15Z")),
    "a negative grace period becomes one second": (pod(grace=40), [-3], (1, "2026-01-01T00:00:11Z")),
    "a second delete without a grace period changes nothing": (pod(grace=40), [20, None], (20, "2026-01-01T00:00:30Z")),
    "a second delete can shorten the grace period": (pod(grace=40), [None, 30], (30, "2026-01-01T00:00:40Z")),
    "a second delete cannot extend the grace period": (pod(grace=40), [20, 40], (20, "2026-01-01T00:00:30Z")),
    "a deadline shortened into the past becomes now, with one second":
        (pod(grace=40), [None, 5], (1, "2026-01-01T00:00:20Z")),
    "a grace period of 0 removes the pod": (pod(grace=40), [0], None),
    "a second delete with a grace period of 0 removes the pod": (pod(grace=40), [None, 0], None),
    "a pod without a node is removed": (pod(grace=40, node=None), [None], None),
    "a failed pod is removed": (pod(grace=40, phase="Failed"), [None], None),
    "a succeeded pod is removed": (pod(grace=40, phase="Succeeded"), [30], None),
    "a finalizer keeps the pod": (pod(grace=40, metadata={"finalizers": ("x",)}), [0], (0, "2026-01-01T00:00:10Z")),
}  # fmt: skip


@pytest.mark.parametrize("what, graces, expected", DELETIONS.values(), ids=DELETIONS.keys())
def test_delete(what: Pod, graces: list[int | None], expected: tuple[int, str] | None) -> None:
    async def scenario() -> Pod | None:
        api = MemoryApi(VirtualClock())
        api.put(what)
        for grace in graces:
            await asyncio.sleep(10)
            await api.delete(Pod, "web", "default", grace_seconds=grace)
        return api.peek(Pod, "web", "default")

    left = simulate(scenario())[0]
    if expected is None or left is None:
        assert (expected, left) == (None, None)
    else:
        meta = left.metadata
        assert (meta.deletion_grace_period_seconds, meta.deletion_timestamp) == expected
        assert meta.generation == 2


def test_removing_the_last_finalizer_removes_a_deleted_object() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        api.put(pod(metadata={"finalizers": ("x",)}))
        api.put(ConfigMap(metadata=ObjectMeta(name="c", finalizers=("x",))))
        await api.delete(Pod, "web", "default", grace_seconds=0)
        await api.delete(ConfigMap, "c", "default")
        assert api.peek(ConfigMap, "c", "default") is not None
        for kind, name in ((Pod, "web"), (ConfigMap, "c")):
            await api.patch(kind, name, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}, "default")
        assert (api.objects(Pod), api.objects(ConfigMap)) == ((), ())

    simulate(scenario())


# ---- watches ----


def test_a_watch_sends_added_and_deleted_when_an_object_starts_and_stops_to_match() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        ours = api.watch(Pod, "1", field_selector="spec.nodeName=n1")
        unbound = api.watch(Pod, "1", field_selector="spec.nodeName=")
        running = api.watch(Pod, "1", field_selector="status.phase!=Pending")
        api.put(pod(node=None))
        api.put(pod(node="n1"))
        api.put(pod(node="n1", phase="Running"))
        api.remove(Pod, "web", "default")
        assert [await event_of(ours) for _ in range(3)] == ["ADDED web", "MODIFIED web", "DELETED web"]
        assert [await event_of(unbound) for _ in range(2)] == ["ADDED web", "DELETED web"]
        assert [await event_of(running) for _ in range(2)] == ["ADDED web", "DELETED web"]

    simulate(scenario())


@pytest.mark.parametrize("version", ["", "0"])
def test_a_watch_without_a_version_starts_with_all_objects(version: str) -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        api.put(pod("a"))
        api.put(pod("b", node="n2"))
        watch = api.watch(Pod, version, namespace="default", field_selector="spec.nodeName=n1")
        elsewhere = api.watch(Pod, version, namespace="other")
        api.put(pod("c"))
        assert [await event_of(watch) for _ in range(2)] == ["ADDED a", "ADDED c"]
        assert (await anext(elsewhere)).type is WatchType.BOOKMARK

    simulate(scenario())


def test_history_is_bounded() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock(), history_limit=3)
        versions = [api.put(pod(f"p{number}")).metadata.resource_version or "" for number in range(5)]
        assert await error_of(event_of(api.watch(Pod, versions[0]))) is Gone
        watch = api.watch(Pod, versions[1])
        assert [await event_of(watch) for _ in range(3)] == ["ADDED p2", "ADDED p3", "ADDED p4"]

    simulate(scenario())


def test_an_idle_watch_sends_bookmarks() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        watch = api.watch(Pod, "1", field_selector="spec.nodeName=n1")
        api.put(pod(node="n2"))
        event = await anext(watch)
        assert (event.type, event.resource_version) == (WatchType.BOOKMARK, "2")
        assert event.object.metadata.resource_version == "2"
        assert asyncio.get_running_loop().time() == 60
        api.send_bookmarks()
        assert (await anext(watch)).type is WatchType.BOOKMARK

    assert simulate(scenario())[1] == 60


@pytest.mark.parametrize("selector", ["spec.nodeName", "spec.nosuch=1", "spec.nodeName.x=1"])
def test_an_invalid_selector_is_rejected(selector: str) -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        assert await error_of(api.list(Pod, field_selector=selector)) is BadInput
        with pytest.raises(BadInput):
            api.watch(Pod, "1", field_selector=selector)
        with pytest.raises(BadInput):
            api.watch(Pod, "yesterday")

    simulate(scenario())


# ---- Faults ----


def test_a_write_with_a_lost_response_takes_effect() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        api.put(pod())
        api.faults.lose_answer("patch_status", "web", seconds=10)
        patch = {"status": {"phase": "Running"}}
        assert await error_of(api.patch_status(Pod, "web", patch, "default")) is ApiUnavailable
        assert (await api.get(Pod, "web", "default")).status.phase == "Running"
        assert [(call.operation, call.error) for call in api.call_log] == [
            ("patch_status", "ApiUnavailable"),
            ("get", ""),
        ]

    assert simulate(scenario())[1] == 10


def test_calls_can_fail_be_slow_and_hang() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock(), delays={"get": 2})
        api.put(pod())
        api.faults.fail("patch", "web", error=Conflict)
        assert await error_of(api.patch(Pod, "web", {"metadata": {"labels": {"a": "b"}}})) is Conflict
        assert (await api.get(Pod, "web")).metadata.labels is None
        api.faults.hang("list", "Pod")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await api.list(Pod)
        assert len((await api.list(Pod)).items) == 1

    assert simulate(scenario())[1] == 102


def test_while_the_api_is_down_calls_fail_and_watches_break() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        api.put(pod())
        watch = api.watch(Pod, "")
        api.go_down()
        assert await error_of(event_of(watch)) is ApiUnavailable
        assert await error_of(api.get(Pod, "web")) is ApiUnavailable
        assert await error_of(event_of(api.watch(Pod, ""))) is ApiUnavailable
        api.put(pod("meanwhile"))
        api.come_up()
        assert await event_of(api.watch(Pod, "2")) == "ADDED meanwhile"

    simulate(scenario())


def test_watches_break_end_and_expire() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        broken = api.watch(Pod, "1")
        api.put(pod("a"))
        api.break_watches()
        assert await error_of(event_of(broken)) is ApiUnavailable
        ended = api.watch(Pod, "1")
        api.end_watches()
        assert [event.object.metadata.name async for event in ended] == ["a"]
        expired = api.watch(Pod, "1")
        api.expire()
        assert await error_of(event_of(expired)) is Gone
        assert await error_of(event_of(api.watch(Pod, "2"))) is Gone
        listed = await api.list(Pod)
        onwards = api.watch(Pod, listed.resource_version)
        api.put(pod("b"))
        assert await event_of(onwards) == "ADDED b"
        closed = api.watch(Pod, "")
        await closed.aclose()
        assert len([event async for event in closed]) == 2

    simulate(scenario())


def test_lists_can_be_stale_as_far_back_as_the_history_goes() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        api.put(pod("a"))
        before = api.version
        api.put(pod("b"))
        api.remove(Pod, "a", "default")
        api.lists_as_of = before
        listed = await api.list(Pod)
        assert [it.metadata.name for it in listed.items] == ["a"]
        watch = api.watch(Pod, listed.resource_version)
        assert [await event_of(watch), await event_of(watch)] == ["ADDED b", "DELETED a"]
        api.expire()
        listed = await api.list(Pod)
        assert [it.metadata.name for it in listed.items] == ["b"]
        onwards = api.watch(Pod, listed.resource_version)
        api.put(pod("c"))
        assert await event_of(onwards) == "ADDED c"

    simulate(scenario())


def test_a_watch_can_be_delayed_and_stalled() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        api = MemoryApi(clock)
        watch = api.watch(Pod, "1")
        api.set_watch_pace(delay_seconds=5)
        api.put(pod("a"))
        api.set_watch_pace()
        api.put(pod("b"))  # no event overtakes another
        assert [await event_of(watch), await event_of(watch), clock.monotonic()] == ["ADDED a", "ADDED b", 5]
        api.set_watch_pace(stalled=True)
        api.put(pod("c"))
        asyncio.get_running_loop().call_later(1000, api.set_watch_pace)
        assert [await event_of(watch), clock.monotonic()] == ["ADDED c", 1005]

    simulate(scenario())


def test_a_stalled_watch_sends_its_queue_when_it_is_ended() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        api = MemoryApi(clock)
        watch = api.watch(Pod, "1")
        api.set_watch_pace(stalled=True)
        api.put(pod("a"))
        api.end_watches()
        assert [await event_of(watch), clock.monotonic()] == ["ADDED a", 0]
        assert [event async for event in watch] == []

    simulate(scenario())


def test_a_watch_that_cannot_be_opened_fails_at_the_first_event() -> None:
    async def scenario() -> None:
        api = MemoryApi(VirtualClock())
        api.faults.fail("watch", "Pod")
        assert await error_of(event_of(api.watch(Pod, "1"))) is ApiUnavailable

    simulate(scenario())
