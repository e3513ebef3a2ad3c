"""Contract of the Kubernetes API port, for every client and server."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from podkeeper.model.api import ObjectEvent, WatchType
from podkeeper.model.errors import AlreadyExists, Conflict, Gone, NotFound
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.ports.api import Api
from podkeeper.testing import build
from podkeeper.testing.contracts.contract import TIMEOUT_SECONDS, Contract, raises

API: "Contract[ApiSubject]" = Contract()

NAMESPACE = "default"


@dataclass(frozen=True)
class ApiSubject:
    """An API client, and a function that makes its server compact the history of all changes so far."""

    api: Api
    expire: Callable[[], Awaitable[None]]


def _pod(*, node: str | None = "n1", grace: int = 30) -> Pod:
    return build.pod(f"p{uuid.uuid4().hex[:8]}", namespace=NAMESPACE, uid="", node=node, grace=grace)


def _name(pod: Pod) -> str:
    assert pod.metadata.name
    return pod.metadata.name


def _version(pod: Pod) -> int:
    assert pod.metadata.resource_version
    return int(pod.metadata.resource_version)


async def _next(stream: AsyncIterator[ObjectEvent[Pod]]) -> ObjectEvent[Pod]:
    """Return the next event that is not a bookmark."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async for event in stream:
            if event.type is not WatchType.BOOKMARK:
                return event
    raise AssertionError("the stream ended")


def _ready(status: str) -> dict[str, object]:
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


@API.scenario
async def create_returns_uid_version_and_creation_time(subject: ApiSubject) -> None:
    """`create` returns the object with UID, resource version and creation time. `get` returns the same object."""
    made = await subject.api.create(_pod())
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert _version(made) > 0
    assert await subject.api.get(Pod, _name(made), NAMESPACE) == made


@API.scenario
async def generate_name_yields_a_new_name_each_time(subject: ApiSubject) -> None:
    """Each object created with `generateName` gets a unique name with that prefix."""
    pod = _pod()
    nameless = Pod(metadata=ObjectMeta(generate_name="web-", namespace=NAMESPACE), spec=pod.spec)
    names = {_name(await subject.api.create(nameless)) for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("web-") and len(name) > len("web-") for name in names)


@API.scenario
async def a_second_object_with_the_same_name_is_rejected(subject: ApiSubject) -> None:
    """`create` raises AlreadyExists if an object with this kind, namespace and name exists."""
    pod = _pod()
    await subject.api.create(pod)
    with raises(AlreadyExists):
        await subject.api.create(pod)


@API.scenario
async def an_unknown_object_is_not_found(subject: ApiSubject) -> None:
    """`get`, `patch`, `patch_status` and `delete` raise NotFound if the object does not exist."""
    api = subject.api
    with raises(NotFound):
        await api.get(Pod, "no-such-pod", NAMESPACE)
    with raises(NotFound):
        await api.patch(Pod, "no-such-pod", {"metadata": {"labels": {"a": "b"}}}, NAMESPACE)
    with raises(NotFound):
        await api.patch_status(Pod, "no-such-pod", _ready("True"), NAMESPACE)
    with raises(NotFound):
        await api.delete(Pod, "no-such-pod", NAMESPACE)


@API.scenario
async def list_applies_the_selector(subject: ApiSubject) -> None:
    """`list` returns the objects that match namespace and field selector, and the version at which they were read."""
    api = subject.api
    node = f"n{uuid.uuid4().hex[:8]}"
    ours = [await api.create(_pod(node=node)) for _ in range(3)]
    await api.create(_pod(node="another"))
    listed = await api.list(Pod, field_selector=f"spec.nodeName={node}")
    assert sorted(map(_name, listed.items)) == sorted(map(_name, ours))
    assert int(listed.resource_version) >= max(map(_version, ours))
    one = await api.list(Pod, namespace=NAMESPACE, field_selector=f"metadata.name={_name(ours[1])}")
    assert list(one.items) == [ours[1]]
    assert (await api.list(Pod, namespace="no-such-namespace")).items == ()


@API.scenario
async def a_watch_sends_the_changes_after_its_version(subject: ApiSubject) -> None:
    """A watch from the version of a list sends every later change once.

    Changes arrive in order, with increasing versions.
    """
    api = subject.api
    node = f"n{uuid.uuid4().hex[:8]}"
    selector = f"spec.nodeName={node}"
    await api.create(_pod(node=node))
    listed = await api.list(Pod, field_selector=selector)
    stream = api.watch(Pod, listed.resource_version, field_selector=selector)
    made = await api.create(_pod(node=node))
    await api.create(_pod(node="another"))
    await api.patch_status(Pod, _name(made), _ready("True"), NAMESPACE)
    await api.delete(Pod, _name(made), NAMESPACE, grace_seconds=0)
    events = [await _next(stream) for _ in range(3)]
    assert [(it.type, _name(it.object)) for it in events] == [
        (WatchType.ADDED, _name(made)),
        (WatchType.MODIFIED, _name(made)),
        (WatchType.DELETED, _name(made)),
    ]
    versions = [int(it.resource_version) for it in events]
    assert versions == sorted(set(versions))
    assert versions[0] > int(listed.resource_version)


@API.scenario
async def a_watch_resumes_from_an_older_version(subject: ApiSubject) -> None:
    """A watch from an older version sends all changes since then.

    Concurrent watches are independent: each gets every change.
    """
    api = subject.api
    node = f"n{uuid.uuid4().hex[:8]}"
    selector = f"spec.nodeName={node}"
    listed = await api.list(Pod, field_selector=selector)
    made = [await api.create(_pod(node=node)) for _ in range(3)]
    first = api.watch(Pod, listed.resource_version, field_selector=selector)
    second = api.watch(Pod, str(_version(made[0])), field_selector=selector)
    assert [_name((await _next(first)).object) for _ in range(3)] == [_name(pod) for pod in made]
    assert [_name((await _next(second)).object) for _ in range(2)] == [_name(pod) for pod in made[1:]]


@API.scenario
async def a_compacted_version_is_gone(subject: ApiSubject) -> None:
    """A watch from a version that the server has compacted raises Gone.

    A watch from the version of a new list works.
    """
    api = subject.api
    old = await api.list(Pod)
    await api.create(_pod())
    await subject.expire()
    with raises(Gone):
        await _next(api.watch(Pod, old.resource_version))
    listed = await api.list(Pod)
    stream = api.watch(Pod, listed.resource_version)
    made = await api.create(_pod())
    assert (await _next(stream)).object == made


@API.scenario
async def patch_status_changes_only_the_status(subject: ApiSubject) -> None:
    """`patch_status` merges into the status and leaves the spec unchanged. Conditions are merged by their type."""
    api = subject.api
    made = await api.create(_pod())
    await api.patch_status(Pod, _name(made), _ready("False"), NAMESPACE)
    more = {"status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}}
    await api.patch_status(Pod, _name(made), more, NAMESPACE)
    last = await api.patch_status(Pod, _name(made), {**_ready("True"), "spec": {"nodeName": "elsewhere"}}, NAMESPACE)
    assert {it.type: it.status for it in last.status.conditions or ()} == {"PodScheduled": "True", "Ready": "True"}
    assert last.status.phase == "Running"
    assert last.spec == made.spec
    assert _version(last) > _version(made)
    assert await api.get(Pod, _name(made), NAMESPACE) == last


@API.scenario
async def patch_leaves_the_status_unchanged(subject: ApiSubject) -> None:
    """`patch` changes metadata and spec. It ignores a status in the patch."""
    api = subject.api
    made = await api.create(_pod())
    patch = {"metadata": {"labels": {"app": "web"}}, "status": {"phase": "Failed"}}
    new = await api.patch(Pod, _name(made), patch, NAMESPACE)
    assert new.metadata.labels == {"app": "web"}
    assert new.status == made.status


@API.scenario
async def a_patch_without_effect_creates_no_version(subject: ApiSubject) -> None:
    """A patch that does not change the object does not create a new version."""
    api = subject.api
    made = await api.create(_pod())
    once = await api.patch_status(Pod, _name(made), _ready("True"), NAMESPACE)
    twice = await api.patch_status(Pod, _name(made), _ready("True"), NAMESPACE)
    assert once == twice


@API.scenario
async def the_uid_is_a_precondition(subject: ApiSubject) -> None:
    """A patch or delete with the UID of another object raises Conflict and has no effect.

    With the object's own UID it works.
    """
    api = subject.api
    made = await api.create(_pod())
    other: dict[str, object] = {"metadata": {"uid": "another"}}
    with raises(Conflict):
        await api.patch_status(Pod, _name(made), {**_ready("True"), **other}, NAMESPACE)
    with raises(Conflict):
        await api.patch(Pod, _name(made), {"metadata": {"uid": "another", "labels": {"a": "b"}}}, NAMESPACE)
    with raises(Conflict):
        await api.delete(Pod, _name(made), NAMESPACE, grace_seconds=0, uid="another")
    assert await api.get(Pod, _name(made), NAMESPACE) == made
    own: dict[str, object] = {"metadata": {"uid": made.metadata.uid}}
    assert _version(await api.patch_status(Pod, _name(made), {**_ready("True"), **own}, NAMESPACE)) > _version(made)
    await api.delete(Pod, _name(made), NAMESPACE, grace_seconds=0, uid=made.metadata.uid)
    with raises(NotFound):
        await api.get(Pod, _name(made), NAMESPACE)


@API.scenario
async def a_pod_on_a_node_is_deleted_gracefully(subject: ApiSubject) -> None:
    """`delete` marks a pod that is bound to a node.

    A later delete can shorten the grace period but not extend it. A grace period of 0 removes the pod.
    """
    api = subject.api
    made = await api.create(_pod(grace=30))
    await api.delete(Pod, _name(made), NAMESPACE)
    marked = await api.get(Pod, _name(made), NAMESPACE)
    assert marked.metadata.deletion_timestamp
    assert marked.metadata.deletion_grace_period_seconds == 30
    await api.delete(Pod, _name(made), NAMESPACE, grace_seconds=60)
    assert await api.get(Pod, _name(made), NAMESPACE) == marked
    await api.delete(Pod, _name(made), NAMESPACE, grace_seconds=5)
    shorter = await api.get(Pod, _name(made), NAMESPACE)
    assert shorter.metadata.deletion_grace_period_seconds == 5
    assert shorter.metadata.deletion_timestamp
    assert shorter.metadata.deletion_timestamp < marked.metadata.deletion_timestamp
    await api.delete(Pod, _name(made), NAMESPACE, grace_seconds=0)
    with raises(NotFound):
        await api.get(Pod, _name(made), NAMESPACE)


@API.scenario
async def an_unbound_pod_is_removed_at_once(subject: ApiSubject) -> None:
    """`delete` removes a pod without a node at once, because no containers have to be stopped."""
    made = await subject.api.create(_pod(node=None))
    await subject.api.delete(Pod, _name(made), NAMESPACE)
    with raises(NotFound):
        await subject.api.get(Pod, _name(made), NAMESPACE)


@API.scenario
async def a_reused_name_gets_a_new_uid(subject: ApiSubject) -> None:
    """An object created with the name of a removed object has another UID and a higher version."""
    api = subject.api
    pod = _pod()
    first = await api.create(pod)
    await api.delete(Pod, _name(pod), NAMESPACE, grace_seconds=0)
    second = await api.create(pod)
    assert first.metadata.uid != second.metadata.uid
    assert _version(second) > _version(first)
