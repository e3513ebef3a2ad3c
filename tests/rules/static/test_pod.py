"""Static pods: identity, tolerations and forbidden references."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s import core
from podkeeper.model.manifest import Document, read_documents
from podkeeper.model.messages import CONFIG_HASH_ANNOTATION
from podkeeper.rules.static.pod import FromFile, FromURL, NotAPod, References, static_pod, static_pod_from
from podkeeper.rules.static.references import references_of
from podkeeper.testing import build

FILE = FromFile("/etc/kubernetes/manifests/web.yaml")
URL = FromURL("http://example.com/pods")
NO_EXECUTE = core.Toleration(operator="Exists", effect="NoExecute")


pod = partial(build.pod, namespace="", uid="", policy=None, grace=None)


def test_identity_on_this_node() -> None:
    made = static_pod(pod(metadata={"annotations": {"a": "b"}}), FILE, "node-1")
    assert made.metadata.name == "web-node-1"
    assert made.metadata.namespace == "default"
    assert made.metadata.annotations == {"a": "b", CONFIG_HASH_ANNOTATION: made.metadata.uid}
    assert made.spec.node_name == "node-1"
    assert made.spec.restart_policy == "Always"
    assert made.status.phase == "Pending"
    assert len(made.metadata.uid or "") == 32


def test_values_of_the_manifest_are_kept() -> None:
    made = static_pod(pod(metadata={"uid": "u-1", "namespace": "ns"}), FILE, "node-1")
    assert (made.metadata.uid, made.metadata.namespace) == ("u-1", "ns")
    assert made.metadata.annotations == {CONFIG_HASH_ANNOTATION: "u-1"}


def test_a_node_with_capitals_cannot_run_static_pods() -> None:
    with pytest.raises(BadInput, match=r"spec\.nodeName"):
        static_pod(pod(), FILE, "Node-A")


UIDS: dict[str, tuple[core.Pod, FromFile | FromURL, str, bool]] = {
    "the same again": (pod(), FILE, "node-1", True),
    "another name": (pod("db"), FILE, "node-1", False),
    "another content": (pod(spec={"host_network": True}), FILE, "node-1", False),
    "another label": (pod(metadata={"labels": {"a": "b"}}), FILE, "node-1", False),
    "an empty map of labels": (pod(metadata={"labels": {}}), FILE, "node-1", False),
    "a default that is spelt out": (pod(spec={"restart_policy": "Always"}), FILE, "node-1", True),
    "another file": (pod(), FromFile("/etc/other.yaml"), "node-1", False),
    "another node": (pod(), FILE, "node-2", False),
    "the same place, but a URL": (pod(), FromURL(FILE.path), "node-1", False),
}


@pytest.mark.parametrize("other, origin, node, same", UIDS.values(), ids=UIDS.keys())
def test_the_uid_follows_content_and_place(other: core.Pod, origin: FromFile | FromURL, node: str, same: bool) -> None:
    first, second = static_pod(pod(), FILE, "node-1"), static_pod(other, origin, node)
    assert (first.metadata.uid == second.metadata.uid) is same


def test_a_url_gives_the_same_uid_on_every_node() -> None:
    assert static_pod(pod(), URL, "node-1").metadata.uid == static_pod(pod(), URL, "node-2").metadata.uid


@given(st.permutations([("a", "1"), ("b", "2"), ("c", "3")]))
def test_the_uid_does_not_depend_on_the_order_of_labels(labels: list[tuple[str, str]]) -> None:
    def uid(pairs: list[tuple[str, str]]) -> str | None:
        return static_pod(pod(metadata={"labels": dict(pairs)}), FILE, "n").metadata.uid

    assert uid(labels) == uid(sorted(labels))


OTHER = core.Toleration(key="k", operator="Exists")
SHORT = core.Toleration(operator="Exists", effect="NoExecute", toleration_seconds=5)
TOLERATIONS = {
    "none before": ((), FILE, (NO_EXECUTE,)),
    "another before": ((OTHER,), FILE, (OTHER, NO_EXECUTE)),
    "already there": ((NO_EXECUTE, OTHER), FILE, (NO_EXECUTE, OTHER)),
    "there for some seconds only": ((SHORT, OTHER), FILE, (NO_EXECUTE, OTHER)),
    "from a URL nothing is added": ((OTHER,), URL, (OTHER,)),
}


@pytest.mark.parametrize("before, origin, after", TOLERATIONS.values(), ids=TOLERATIONS.keys())
def test_tolerations(
    before: tuple[core.Toleration, ...], origin: FromFile | FromURL, after: tuple[core.Toleration, ...]
) -> None:
    assert static_pod(pod(spec={"tolerations": before}), origin, "n").spec.tolerations == after


def spec_json(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "busybox", **fields}]}


def volume(**source: Any) -> dict[str, Any]:
    return {**spec_json(), "volumes": [{"name": "v", **source}]}


def projected(**source: Any) -> dict[str, Any]:
    return volume(projected={"sources": [source]})


REFERENCES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "nothing": (spec_json(env=[{"name": "A", "value": "B"}]), []),
    "a service account": (
        {**spec_json(), "serviceAccountName": "sa"},
        [("serviceaccounts", "spec.serviceAccountName")],
    ),
    "a secret to pull with": (
        {**spec_json(), "imagePullSecrets": [{"name": ""}, {"name": "x"}]},
        [("secrets", "spec.imagePullSecrets[1]")],
    ),
    "the environment from a secret and a config map": (
        spec_json(envFrom=[{"secretRef": {"name": "x"}}, {"configMapRef": {"name": "y"}}]),
        [
            ("secrets", "spec.containers[0].envFrom[0].secretRef"),
            ("configmaps", "spec.containers[0].envFrom[1].configMapRef"),
        ],
    ),
    "one variable from a config map": (
        spec_json(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k"}}}]),
        [("configmaps", "spec.containers[0].env[0].valueFrom.configMapKeyRef")],
    ),
    "a variable of an init container from a secret": (
        {
            **spec_json(),
            "initContainers": [
                {"name": "i", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "k"}}}]}
            ],
        },
        [("secrets", "spec.initContainers[0].env[0].valueFrom.secretKeyRef")],
    ),
    "a reference without a name refers to nothing": (spec_json(envFrom=[{"secretRef": {}}]), []),
    "a resource claim": (
        {**spec_json(), "resourceClaims": [{"name": "r"}]},
        [("resourceclaims", "spec.resourceClaims[0]")],
    ),
    "a secret as a volume": (volume(secret={"secretName": "x"}), [("secrets", "spec.volumes[0].secret")]),
    "a config map as a volume": (volume(configMap={"name": "x"}), [("configmaps", "spec.volumes[0].configMap")]),
    "a claim": (
        volume(persistentVolumeClaim={"claimName": "x"}),
        [("persistentvolumeclaims", "spec.volumes[0].persistentVolumeClaim")],
    ),
    "an ephemeral claim": (volume(ephemeral={}), [("persistentvolumeclaims", "spec.volumes[0].ephemeral")]),
    "a CSI volume": (volume(csi={"driver": "d"}), [("csidrivers", "spec.volumes[0].csi")]),
    "glusterfs": (volume(glusterfs={"endpoints": "e", "path": "p"}), [("endpoints", "spec.volumes[0].glusterfs")]),
    "a share of Azure": (
        volume(azureFile={"secretName": "s", "shareName": "h"}),
        [("secrets", "spec.volumes[0].azureFile")],
    ),
    "a password for a remote volume": (
        volume(rbd={"image": "i", "monitors": ["m"], "secretRef": {"name": "x"}}),
        [("secrets", "spec.volumes[0].rbd.secretRef")],
    ),
    "a remote volume without a password": (volume(rbd={"image": "i", "monitors": ["m"]}), []),
    "a projected secret": (
        projected(secret={"name": "x"}),
        [("secrets", "spec.volumes[0].projected.sources[0].secret")],
    ),
    "a projected token": (
        projected(serviceAccountToken={"path": "t"}),
        [("serviceaccounts", "spec.volumes[0].projected.sources[0].serviceAccountToken")],
    ),
    "a projected trust bundle": (
        projected(clusterTrustBundle={"path": "t"}),
        [("clustertrustbundles", "spec.volumes[0].projected.sources[0].clusterTrustBundle")],
    ),
    "a projected downward API": (projected(downwardAPI={"items": []}), []),
    "a directory of the host": (volume(hostPath={"path": "/"}), []),
    "an empty directory": (volume(emptyDir={}), []),
}


@pytest.mark.parametrize("spec, expected", REFERENCES.values(), ids=REFERENCES.keys())
def test_references(spec: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = references_of(msgspec.convert(spec, core.PodSpec))
    assert [(each.resource, each.field) for each in found] == expected


def with_secret() -> core.Pod:
    secret = core.Volume(name="s", secret=core.SecretVolumeSource(secret_name="x"))
    return pod(spec={"volumes": (secret,)})


def with_claim() -> core.Pod:
    claim = core.Volume(name="s", persistent_volume_claim=core.PersistentVolumeClaimVolumeSource(claim_name="x"))
    return pod(spec={"volumes": (claim,)})


REFUSALS: dict[str, tuple[Callable[[], core.Pod], References, bool]] = {
    "a secret, without a store": (with_secret, References.NONE, True),
    "a secret, with a local store": (with_secret, References.LOCAL_STORE, False),
    "a claim, which no local store holds": (with_claim, References.LOCAL_STORE, True),
}


@pytest.mark.parametrize("make, allowed, refused", REFUSALS.values(), ids=REFUSALS.keys())
def test_references_are_forbidden_without_a_local_store(
    make: Callable[[], core.Pod], allowed: References, refused: bool
) -> None:
    if refused:
        with pytest.raises(BadInput, match=r"spec\.volumes\[0\].*: Forbidden: static pods may not reference"):
            static_pod(make(), FILE, "n", allowed)
    else:
        assert static_pod(make(), FILE, "n", allowed).status.phase == "Pending"


def document(text: str) -> Document:
    (found,) = read_documents(text, "web.yaml").all_valid()
    return found


NOT_PODS = {
    "a service": (
        "apiVersion: v1\nkind: Service\n",
        'web.yaml:2: kind: Unsupported value: "Service": supported values: "Pod"',
    ),
    "nothing known": ("apiVersion: v1\nkind: Pods\n", 'web.yaml:2: kind: Unsupported value: "Pods": unknown kind'),
    "a pod of wrong types": ("apiVersion: v1\nkind: Pod\nspec: 5\n", "web.yaml:3: spec: Invalid value: number 5"),
}


@pytest.mark.parametrize("text, message", NOT_PODS.values(), ids=NOT_PODS.keys())
def test_other_documents_are_rejected(text: str, message: str) -> None:
    with pytest.raises(NotAPod) as caught:
        static_pod_from(document(text), FILE, "n")
    assert str(caught.value).startswith(message)


BAD_PODS = {
    "no name": ("apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {}\n", [("metadata.name", 3)]),
    "no containers and a secret": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: []\n  volumes:\n"
        "  - name: s\n    secret: {secretName: x}\n",
        [("spec.containers", 5), ("spec.volumes[0].secret", 8)],
    ),
}


@pytest.mark.parametrize("text, expected", BAD_PODS.values(), ids=BAD_PODS.keys())
def test_problems_of_a_pod_come_with_their_lines(text: str, expected: list[tuple[str, int]]) -> None:
    with pytest.raises(BadInput) as caught:
        static_pod_from(document(text), FILE, "n")
    assert not isinstance(caught.value, NotAPod)
    assert [(problem.field, problem.line) for problem in caught.value.problems] == expected
    assert all(problem.file == "web.yaml" for problem in caught.value.problems)
