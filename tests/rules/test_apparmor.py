"""AppArmor: whose word counts, and what a node cannot give."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.rules.apparmor import apparmor_profile_of, apparmor_trouble

Json = dict[str, Any]

KEY = "container.apparmor.security.beta.kubernetes.io/c"
DEFAULT: Json = {"appArmorProfile": {"type": "RuntimeDefault"}}
NONE: Json = {"appArmorProfile": {"type": "Unconfined"}}
OWN: Json = {"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}}
NAMELESS: Json = {"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}}
NOT_ENABLED = "Cannot enforce AppArmor: AppArmor is not enabled on the host"


def pod(own: Json | None = None, shared: Json | None = None, annotation: str | None = None) -> Pod:
    wire = {
        "metadata": {"name": "p", "annotations": {} if annotation is None else {KEY: annotation}},
        "spec": {"securityContext": shared, "containers": [{"name": "c", "securityContext": own}]},
    }
    return msgspec.convert(wire, Pod)


PROFILES = {
    "nobody says anything": (pod(), None),
    "the container's word goes first": (pod(OWN, DEFAULT, "unconfined"), "mine"),
    "then the old annotation's": (pod(None, DEFAULT, "localhost/old"), "old"),
    "of which there are three kinds": (pod(None, OWN, "runtime/default"), "RuntimeDefault"),
    "and one is none": (pod(None, OWN, "unconfined"), "Unconfined"),
    "another annotation says nothing": (pod(None, DEFAULT, "something"), "RuntimeDefault"),
    "then the pod's": (pod(None, OWN), "mine"),
}


@pytest.mark.parametrize("wanting, expected", PROFILES.values(), ids=PROFILES.keys())
def test_whose_word_counts(wanting: Pod, expected: str | None) -> None:
    found = apparmor_profile_of(wanting, wanting.spec.containers[0])
    assert (None if found is None else found.localhost_profile or found.type) == expected


TROUBLES = {
    "nothing is asked for": (pod(), None, None),
    "nothing is wanted": (pod(NONE), None, None),
    "nothing is wanted, in the old way": (pod(annotation="unconfined"), None, None),
    "a container's": (pod(DEFAULT), NOT_ENABLED, None),
    "a pod's": (pod(None, OWN), NOT_ENABLED, None),
    "a pod's that no container has": (pod(NONE, DEFAULT), NOT_ENABLED, None),
    "an annotation's": (pod(annotation="runtime/default"), NOT_ENABLED, None),
    "one without a name": (
        pod(NAMELESS),
        NOT_ENABLED,
        'Cannot enforce AppArmor: invalid empty AppArmor profile name of container "c"',
    ),
}


@pytest.mark.parametrize("wanting, without, with_it", TROUBLES.values(), ids=TROUBLES.keys())
def test_what_a_node_cannot_give(wanting: Pod, without: str | None, with_it: str | None) -> None:
    assert apparmor_trouble(wanting, enabled=False) == without
    assert apparmor_trouble(wanting, enabled=True) == with_it
