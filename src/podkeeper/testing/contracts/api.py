"""What every client of the API promises, over whatever server it speaks to."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from podkeeper.model.api import WatchEvent, WatchType
from podkeeper.model.errors import AlreadyExists, Conflict, Gone, NotFound
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.ports.api import Api
from podkeeper.testing.contracts.contract import PATIENCE_SECONDS, Contract, raises

API: "Contract[ApiSubject]" = Contract()

NAMESPACE = "default"


@dataclass(frozen=True)
class ApiSubject:
    """An API, and a way to make its server forget what happened so far (by compaction)."""

    api: Api
    expire: Callable[[], Awaitable[None]]


def _pod(name: str = "", *, node: str = "n1", grace: int = 30) -> Pod:
    return Pod(
        api_version="v1",
        kind="Pod",
        metadata=ObjectMeta(name=name or f"p{uuid.uuid4().hex[:8]}", namespace=NAMESPACE),
        spec=PodSpec(
            containers=(Container(name="web", image="nginx"),),
            node_name=node or None,
            termination_grace_period_seconds=grace,
        ),
    )


def _name(pod: Pod) -> str:
    assert pod.metadata.name
    return pod.metadata.name


def _version(pod: Pod) -> int:
    assert pod.metadata.resource_version
    return int(pod.metadata.resource_version)


async def _next(stream: AsyncIterator[WatchEvent[Pod]]) -> WatchEvent[Pod]:
    """The next event that is not a bookmark."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in stream:
            if event.type is not WatchType.BOOKMARK:
                return event
    raise AssertionError("the stream ended")


def _ready(status: str) -> dict[str, object]:
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


@API.promises
async def a_created_object_is_given_its_identity(subject: ApiSubject) -> None:
    """`create` returns the object with UID, version and creation time, and `get` returns the same."""
    made = await subject.api.create(_pod())
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert _version(made) > 0
    assert await subject.api.get(Pod, _name(made), NAMESPACE) == made


@API.promises
async def a_name_can_be_made_up(subject: ApiSubject) -> None:
    """An object with `generateName` gets a name of its own each time."""
    pod = _pod()
    nameless = Pod(metadata=ObjectMeta(generate_name="web-", namespace=NAMESPACE), spec=pod.spec)
    names = {_name(await subject.api.create(nameless)) for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("web-") and len(name) > len("web-") for name in names)


@API.promises
async def a_name_is_taken_once(subject: ApiSubject) -> None:
    """A second object of the same name is refused with AlreadyExists."""
    pod = _pod()
    await subject.api.create(pod)
    with raises(AlreadyExists):
        await subject.api.create(pod)


@API.promises
async def the_unknown_is_not_found(subject: ApiSubject) -> None:
    """Reading, patching and deleting what there is not raises NotFound."""
    api = subject.api
    with raises(NotFound):
        await api.get(Pod, "no-such-pod", NAMESPACE)
    with raises(NotFound):
        await api.patch(Pod, "no-such-pod", {"metadata": {"labels": {"a": "b"}}}, NAMESPACE)
    with raises(NotFound):
        await api.patch_status(Pod, "no-such-pod", _ready("True"), NAMESPACE)
    with raises(NotFound):
        await api.delete(Pod, "no-such-pod", NAMESPACE)


@API.promises
async def a_list_holds_what_the_selector_means(subject: ApiSubject) -> None:
    """`list` returns the objects whose fields fit, with the version they were read at."""
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


@API.promises
async def a_watch_tells_what_happens_after_its_version(subject: ApiSubject) -> None:
    """A watch from a list's version tells every later change once, in order, with growing versions."""
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


@API.promises
async def a_watch_goes_on_from_any_version_seen(subject: ApiSubject) -> None:
    """A watch from an older version tells all that was missed, and several watchers are each told everything."""
    api = subject.api
    node = f"n{uuid.uuid4().hex[:8]}"
    selector = f"spec.nodeName={node}"
    listed = await api.list(Pod, field_selector=selector)
    made = [await api.create(_pod(node=node)) for _ in range(3)]
    first = api.watch(Pod, listed.resource_version, field_selector=selector)
    second = api.watch(Pod, str(_version(made[0])), field_selector=selector)
    assert [_name((await _next(first)).object) for _ in range(3)] == [_name(pod) for pod in made]
    assert [_name((await _next(second)).object) for _ in range(2)] == [_name(pod) for pod in made[1:]]


@API.promises
async def a_version_that_is_too_old_is_gone(subject: ApiSubject) -> None:
    """Watching from a version the server has forgotten raises Gone; a new list leads on."""
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


@API.promises
async def a_patch_of_the_status_touches_nothing_else(subject: ApiSubject) -> None:
    """`patch_status` merges into the status, conditions by their type, and leaves the spec alone."""
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


@API.promises
async def a_patch_of_the_object_leaves_the_status(subject: ApiSubject) -> None:
    """`patch` changes labels and the like, and no status."""
    api = subject.api
    made = await api.create(_pod())
    patch = {"metadata": {"labels": {"app": "web"}}, "status": {"phase": "Failed"}}
    new = await api.patch(Pod, _name(made), patch, NAMESPACE)
    assert new.metadata.labels == {"app": "web"}
    assert new.status == made.status


@API.promises
async def a_patch_that_changes_nothing_is_no_change(subject: ApiSubject) -> None:
    """A patch that leaves the object as it was makes no new version."""
    api = subject.api
    made = await api.create(_pod())
    once = await api.patch_status(Pod, _name(made), _ready("True"), NAMESPACE)
    twice = await api.patch_status(Pod, _name(made), _ready("True"), NAMESPACE)
    assert once == twice


@API.promises
async def a_uid_is_a_precondition(subject: ApiSubject) -> None:
    """A patch or a deletion meant for another UID is refused with Conflict, and one for this UID is done."""
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


@API.promises
async def a_pod_on_a_node_is_deleted_gracefully(subject: ApiSubject) -> None:
    """`delete` only marks a pod that is on a node; a later one may shorten the grace, not lengthen it; 0 removes."""
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


@API.promises
async def a_pod_on_no_node_is_removed_at_once(subject: ApiSubject) -> None:
    """Nobody has anything to stop: deleting a pod that no node has removes it."""
    made = await subject.api.create(_pod(node=""))
    await subject.api.delete(Pod, _name(made), NAMESPACE)
    with raises(NotFound):
        await subject.api.get(Pod, _name(made), NAMESPACE)


@API.promises
async def a_name_that_is_used_again_is_another_object(subject: ApiSubject) -> None:
    """After a removal the same name is another UID."""
    api = subject.api
    pod = _pod()
    first = await api.create(pod)
    await api.delete(Pod, _name(pod), NAMESPACE, grace_seconds=0)
    second = await api.create(pod)
    assert first.metadata.uid != second.metadata.uid
    assert _version(second) > _version(first)
