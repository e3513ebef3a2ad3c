"""The hash of a container's spec: the kubelet's, of name and image only."""

import msgspec

from podkeeper.model.k8s.core import Container, EnvVar, ResourceRequirements
from podkeeper.rules.container.hash import container_hash

CONTAINER = Container(name="test_container", image="foo/image:v1")


def test_it_equals_the_kubelets_hash() -> None:
    assert container_hash(CONTAINER) == "8e45cbd0"  # the kubelet keeps this value stable across versions


def test_name_and_image_count() -> None:
    hashes = {
        container_hash(each)
        for each in (
            CONTAINER,
            msgspec.structs.replace(CONTAINER, name="other"),
            msgspec.structs.replace(CONTAINER, image="foo/image:v2"),
            msgspec.structs.replace(CONTAINER, image=None),
        )
    }
    assert len(hashes) == 4


def test_nothing_else_counts() -> None:
    richer = msgspec.structs.replace(
        CONTAINER, env=(EnvVar(name="A"),), resources=ResourceRequirements(limits={"cpu": "1"}), restart_policy="Never"
    )
    assert container_hash(richer) == container_hash(CONTAINER)
