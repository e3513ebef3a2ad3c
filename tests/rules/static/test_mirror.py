"""Static pods and their mirror pods: identity, creation, deletion."""

from functools import partial

import pytest

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import DeleteOptions, OwnerReference, Preconditions
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_MIRROR_ANNOTATION,
    FILE_SOURCE,
    HTTP_SOURCE,
)
from podkeeper.rules.static.mirror import (
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
from podkeeper.testing import build

pod = partial(build.pod, namespace="ns", uid="")


STATIC = pod(source=FILE_SOURCE, hashed="h1")

KINDS = {
    "a pod from a file is static": (STATIC, True, False),
    "a pod from a URL is static": (pod(source=HTTP_SOURCE), True, False),
    "a pod from the API is not": (pod(source=API_SOURCE), False, False),
    "a pod of no known source is not": (pod(), False, False),
    "a mirror pod is from the API and not static": (pod(source=API_SOURCE, mirror="h1"), False, True),
    "a mirror pod with an empty hash": (pod(source=API_SOURCE, mirror=""), False, True),
}


@pytest.mark.parametrize("which, static, mirror", KINDS.values(), ids=KINDS.keys())
def test_kind(which: Pod, static: bool, mirror: bool) -> None:
    assert (is_static_pod(which), is_mirror_pod(which)) == (static, mirror)


STEPS = {
    "a missing mirror pod is created": (None, MirrorStep.CREATE),
    "a mirror pod of this version stays": (pod(mirror="h1"), MirrorStep.KEEP),
    "a mirror pod of another version is replaced": (pod(mirror="h2"), MirrorStep.RECREATE),
    "a mirror pod that is being deleted is replaced": (
        pod(mirror="h1", deleted="2024-01-01T00:00:00Z"),
        MirrorStep.RECREATE,
    ),
    "another pod with that name is replaced": (pod(), MirrorStep.RECREATE),
}


@pytest.mark.parametrize("mirror, expected", STEPS.values(), ids=STEPS.keys())
def test_mirror_step(mirror: Pod | None, expected: MirrorStep) -> None:
    assert mirror_step(STATIC, mirror) is expected


OUTDATED = {
    "a mirror pod of this version is not": (pod(mirror="h1"), False),
    "a mirror pod of another version is": (pod(mirror="h2"), True),
    "another pod with that name is not": (pod(), False),
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


def test_a_mirror_pod_has_the_hash_of_the_static_pod_and_the_node_as_owner() -> None:
    mirror = mirror_pod_for(STATIC, "node-1", "node-uid")
    assert mirror.spec is STATIC.spec
    assert mirror.metadata.annotations == {**(STATIC.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: "h1"}
    owner = OwnerReference(api_version="v1", kind="Node", name="node-1", uid="node-uid", controller=True)
    assert mirror.metadata.owner_references == (owner,)
    assert mirror_step(STATIC, mirror) is MirrorStep.KEEP


def test_creating_a_mirror_pod_does_not_change_the_static_pod() -> None:
    mirror_pod_for(STATIC, "node-1", "node-uid")
    assert not is_mirror_pod(STATIC)


@pytest.mark.parametrize("node_uid", [None, ""])
def test_without_the_uid_of_the_node_there_is_no_mirror_pod_yet(node_uid: str | None) -> None:
    with pytest.raises(TryLater, match="cannot create a mirror pod of web_ns: the UID of node node-1"):
        mirror_pod_for(STATIC, "node-1", node_uid)


@pytest.mark.parametrize("uid", [None, "mirror-1"])
def test_a_mirror_pod_is_deleted_without_grace_and_by_uid_if_known(uid: str | None) -> None:
    options = DeleteOptions(grace_period_seconds=0, preconditions=Preconditions(uid=uid))
    assert mirror_deletion("web_ns", uid) == MirrorDeletion("ns", "web", options)


@pytest.mark.parametrize("bad", ["", "web", "_ns", "web_", "web_ns_more"])
def test_an_invalid_full_name_is_rejected(bad: str) -> None:
    with pytest.raises(BadInput, match="must be the full name of a pod, name_namespace"):
        mirror_deletion(bad, None)


def test_parse_full_name_inverts_full_name() -> None:
    assert parse_full_name(full_name(STATIC)) == ("web", "ns")
    assert pod_source(STATIC) == FILE_SOURCE
