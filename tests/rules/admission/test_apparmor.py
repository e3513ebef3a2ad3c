"""AppArmor: which profile applies, and which a node cannot apply."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.rules.admission.apparmor import apparmor_error, apparmor_profile_of

Json = dict[str, Any]

KEY = "container.apparmor.security.beta.kubernetes.io/c"
DEFAULT: Json = {"appArmorProfile": {"type": "RuntimeDefault"}}
NONE: Json = {"appArmorProfile": {"type": "Unconfined"}}
OWN: Json = {"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}}
NAMELESS: Json = {"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}}
NOT_ENABLED = "Cannot enforce AppArmor: AppArmor is not enabled on the host"


def parsed(own: Json | None = None, shared: Json | None = None, annotation: str | None = None) -> Pod:
    wire = {
        "metadata": {"name": "p", "annotations": {} if annotation is None else {KEY: annotation}},
        "spec": {"securityContext": shared, "containers": [{"name": "c", "securityContext": own}]},
    }
    return msgspec.convert(wire, Pod)


PROFILES = {
    "no profile": (parsed(), None),
    "the container's field has priority": (parsed(OWN, DEFAULT, "unconfined"), "mine"),
    "then the deprecated annotation": (parsed(None, DEFAULT, "localhost/old"), "old"),
    "a runtime/default annotation": (parsed(None, OWN, "runtime/default"), "RuntimeDefault"),
    "an annotation that is unconfined": (parsed(None, OWN, "unconfined"), "Unconfined"),
    "an unknown annotation value is ignored": (parsed(None, DEFAULT, "something"), "RuntimeDefault"),
    "then the pod's field": (parsed(None, OWN), "mine"),
}


@pytest.mark.parametrize("wanting, expected", PROFILES.values(), ids=PROFILES.keys())
def test_apparmor_profile_of(wanting: Pod, expected: str | None) -> None:
    found = apparmor_profile_of(wanting, wanting.spec.containers[0])
    assert (None if found is None else found.localhost_profile or found.type) == expected


TROUBLES = {
    "no profile": (parsed(), None, None),
    "an unconfined field": (parsed(NONE), None, None),
    "an unconfined annotation": (parsed(annotation="unconfined"), None, None),
    "a container's field": (parsed(DEFAULT), NOT_ENABLED, None),
    "a pod's field": (parsed(None, OWN), NOT_ENABLED, None),
    "a pod's field that no container uses": (parsed(NONE, DEFAULT), NOT_ENABLED, None),
    "an annotation": (parsed(annotation="runtime/default"), NOT_ENABLED, None),
    "a local profile without a name": (
        parsed(NAMELESS),
        NOT_ENABLED,
        'Cannot enforce AppArmor: invalid empty AppArmor profile name of container "c"',
    ),
}


@pytest.mark.parametrize("wanting, without, with_it", TROUBLES.values(), ids=TROUBLES.keys())
def test_apparmor_error(wanting: Pod, without: str | None, with_it: str | None) -> None:
    assert apparmor_error(wanting, enabled=False) == without
    assert apparmor_error(wanting, enabled=True) == with_it
