"""Which objects a pod needs: every place in a spec that names a config map, a secret or a token."""

from typing import Any

import pytest

from podkeeper.model.k8s.core import (
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    LocalObjectReference,
    Pod,
    PodSpec,
    ProjectedVolumeSource,
    SecretEnvSource,
    SecretKeySelector,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.rules.container.needed_objects import needed_objects

APP = Container(name="app", image="app")
FROM_MAP = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="a"))
FROM_SECRET = EnvFromSource(secret_ref=SecretEnvSource(name="a"))
KEY_OF_MAP = EnvVar(name="X", value_from=EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name="a", key="k")))
KEY_OF_SECRET = EnvVar(name="X", value_from=EnvVarSource(secret_key_ref=SecretKeySelector(name="a", key="k")))


def projected(**part: Any) -> PodSpec:
    source = ProjectedVolumeSource(sources=(VolumeProjection(**part),))
    return PodSpec(containers=(APP,), volumes=(Volume(name="v", projected=source),))


SPECS = {
    "nothing": (PodSpec(containers=(APP,)), []),
    "envFrom a config map": (
        PodSpec(containers=(Container(name="app", env_from=(FROM_MAP,)),)), ["ConfigMap ns/a"]),
    "envFrom a secret, in an init container": (
        PodSpec(init_containers=(Container(name="i", env_from=(FROM_SECRET,)),), containers=(APP,)), ["Secret ns/a"]),
    "one key each, in an ephemeral container": (
        PodSpec(containers=(APP,), ephemeral_containers=(
            EphemeralContainer(name="e", env=(KEY_OF_MAP, KEY_OF_SECRET)),)), ["ConfigMap ns/a", "Secret ns/a"]),
    "volumes": (
        PodSpec(containers=(APP,), volumes=(
            Volume(name="v", config_map=ConfigMapVolumeSource(name="a")),
            Volume(name="w", secret=SecretVolumeSource(secret_name="b")))), ["ConfigMap ns/a", "Secret ns/b"]),
    "a projected config map": (projected(config_map=ConfigMapProjection(name="a")), ["ConfigMap ns/a"]),
    "a projected secret": (projected(secret=SecretProjection(name="a")), ["Secret ns/a"]),
    "a projected token": (
        projected(service_account_token=ServiceAccountTokenProjection(path="t", audience="vault")),
        ["Token ns/uid-1/vault"]),
    "image pull secrets": (
        PodSpec(containers=(APP,), image_pull_secrets=(LocalObjectReference(name="a"), LocalObjectReference())),
        ["Secret ns/a"]),
}  # fmt: skip


@pytest.mark.parametrize("spec, expected", SPECS.values(), ids=SPECS.keys())
def test_needed_objects(spec: PodSpec, expected: list[str]) -> None:
    pod = Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="uid-1"), spec=spec)
    assert sorted(map(str, needed_objects(pod))) == expected
