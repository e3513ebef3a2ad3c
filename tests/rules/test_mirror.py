"""Static pods and their mirrors: who is who, what to create, what to delete."""

import pytest

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import DeleteOptions, ObjectMeta, OwnerReference, Preconditions
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    FILE_SOURCE,
    HTTP_SOURCE,
)
from podkeeper.rules.mirror import (
    MirrorDeletion,
    MirrorStep,
    full_name,
    is_mirror_pod,
    is_mirror_pod_of,
    is_outdated_mirror,
    is_static_pod,
    mirror_deletion,
    mirror_pod_for,
    mirror_step,
    parse_full_name,
    pod_source,
)


def pod(name: str = "web", *, namespace: str = "ns", deleted: str | None = None, **annotations: str) -> Pod:
    """A pod; source, hash and mirror name the annotations of those names."""
    keys = {"source": CONFIG_SOURCE_ANNOTATION, "hash": CONFIG_HASH_ANNOTATION, "mirror": CONFIG_MIRROR_ANNOTATION}
    named = {keys[key]: value for key, value in annotations.items()} or None
    metadata = ObjectMeta(name=name, namespace=namespace, annotations=named, deletion_timestamp=deleted)
    return Pod(metadata=metadata, spec=PodSpec(containers=(Container(name="app"),)))


STATIC = pod(source=FILE_SOURCE, hash="h1")

KINDS = {
    "a pod from a file is static": (STATIC, True, False),
    "a pod from a URL is static": (pod(source=HTTP_SOURCE), True, False),
    "a pod from the API is not": (pod(source=API_SOURCE), False, False),
    "a pod of no known source is not": (pod(), False, False),
    "a mirror comes from the API and is not static": (pod(source=API_SOURCE, mirror="h1"), False, True),
    "an empty hash still makes a mirror": (pod(source=API_SOURCE, mirror=""), False, True),
}


@pytest.mark.parametrize("which, static, mirror", KINDS.values(), ids=KINDS.keys())
def test_kind(which: Pod, static: bool, mirror: bool) -> None:
    assert (is_static_pod(which), is_mirror_pod(which)) == (static, mirror)


STEPS = {
    "no mirror yet: create it": (None, MirrorStep.CREATE),
    "a mirror of this version stays": (pod(mirror="h1"), MirrorStep.KEEP),
    "a mirror of another version is replaced": (pod(mirror="h2"), MirrorStep.RECREATE),
    "a mirror being deleted is replaced": (pod(mirror="h1", deleted="2024-01-01T00:00:00Z"), MirrorStep.RECREATE),
    "a pod of that name that is no mirror is replaced": (pod(), MirrorStep.RECREATE),
}


@pytest.mark.parametrize("mirror, expected", STEPS.values(), ids=STEPS.keys())
def test_mirror_step(mirror: Pod | None, expected: MirrorStep) -> None:
    assert mirror_step(STATIC, mirror) is expected


OUTDATED = {
    "a mirror of this version is not": (pod(mirror="h1"), False),
    "a mirror of another version is": (pod(mirror="h2"), True),
    "a pod of that name that is no mirror is not": (pod(), False),
}


@pytest.mark.parametrize("mirror, expected", OUTDATED.values(), ids=OUTDATED.keys())
def test_is_outdated_mirror(mirror: Pod, expected: bool) -> None:
    assert is_outdated_mirror(mirror, STATIC) is expected


MATCHES = {
    "same name and hash": (pod(mirror="h1"), STATIC, True),
    "another name": (pod("other", mirror="h1"), STATIC, False),
    "another namespace": (pod(namespace="other", mirror="h1"), STATIC, False),
    "another hash": (pod(mirror="h2"), STATIC, False),
    "no mirror annotation, and the pod has no hash either": (pod(), pod(), False),
    "an empty hash on both sides": (pod(mirror=""), pod(), True),
}


@pytest.mark.parametrize("mirror, static, expected", MATCHES.values(), ids=MATCHES.keys())
def test_is_mirror_pod_of(mirror: Pod, static: Pod, expected: bool) -> None:
    assert is_mirror_pod_of(mirror, static) is expected


def test_a_mirror_is_the_static_pod_marked_with_its_hash_and_owned_by_the_node() -> None:
    mirror = mirror_pod_for(STATIC, "node-1", "node-uid")
    assert mirror.spec is STATIC.spec
    assert mirror.metadata.annotations == {**(STATIC.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: "h1"}
    owner = OwnerReference(api_version="v1", kind="Node", name="node-1", uid="node-uid", controller=True)
    assert mirror.metadata.owner_references == (owner,)
    assert mirror_step(STATIC, mirror) is MirrorStep.KEEP


def test_making_a_mirror_leaves_the_static_pod_alone() -> None:
    mirror_pod_for(STATIC, "node-1", "node-uid")
    assert not is_mirror_pod(STATIC)


@pytest.mark.parametrize("node_uid", [None, ""])
def test_without_the_nodes_uid_no_mirror_can_be_made_yet(node_uid: str | None) -> None:
    with pytest.raises(TryLater, match="cannot create a mirror of pod web_ns: the UID of node node-1"):
        mirror_pod_for(STATIC, "node-1", node_uid)


@pytest.mark.parametrize("uid", [None, "mirror-1"])
def test_a_mirror_is_deleted_at_once_and_only_under_its_uid_if_that_is_known(uid: str | None) -> None:
    options = DeleteOptions(grace_period_seconds=0, preconditions=Preconditions(uid=uid))
    assert mirror_deletion("web_ns", uid) == MirrorDeletion("ns", "web", options)


@pytest.mark.parametrize("bad", ["", "web", "_ns", "web_", "web_ns_more"])
def test_a_bad_full_name_is_refused(bad: str) -> None:
    with pytest.raises(BadInput, match="right would be name_namespace"):
        mirror_deletion(bad, None)


def test_full_names_are_read_as_they_are_written() -> None:
    assert parse_full_name(full_name(STATIC)) == ("web", "ns")
    assert pod_source(STATIC) == FILE_SOURCE
