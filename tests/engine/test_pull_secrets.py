"""Pull secrets: what is read of a pod's Secrets, and what is said of those that cannot be had."""

import json
from base64 import b64encode

import pytest
from msgspec.structs import replace

from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import LocalObjectReference, Pod, PodSpec, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import K
from podkeeper.rules.keyring import keys_for
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.virtual_time import simulate
from tests.violations import violation

NEWER, OLDER = "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"


def pod(*secrets: str) -> Pod:
    named = tuple(LocalObjectReference(name=name) for name in secrets)
    return Pod(
        metadata=ObjectMeta(name="web", namespace="team", uid="uid-web"),
        spec=PodSpec(containers=(), image_pull_secrets=named),
    )


def secret(name: str, content: object, *, kind: str = NEWER, namespace: str = "team") -> Secret:
    text = content if isinstance(content, str) else json.dumps(content)
    key = ".dockercfg" if kind == OLDER else ".dockerconfigjson"
    return Secret(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"),
        type=kind,
        data={key: b64encode(text.encode()).decode()},
    )


def auths(user: str) -> dict[str, object]:
    return {"reg.test": {"username": user, "password": "x"}}


class Broken:
    """An API that is not well."""

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        raise ApiUnavailable("cannot reach the API")


def read(of: Pod, *objects: Secret, broken: bool = False) -> tuple[list[str], list[PodEvent]]:
    """The users that a pod would pull as, and what it was told."""
    told: list[PodEvent] = []

    def record(event: PodEvent, about: Pod | PodRecord | None) -> None:
        if about is not of:
            raise violation(f"{event} is about {about}")
        told.append(event)

    held = LocalObjects()
    held.replace("file", objects)
    secrets = PullSecrets(objects=Broken() if broken else held, record=record)

    async def ask() -> list[str]:
        return [each.username for each in keys_for("reg.test/app", await secrets.pull_secrets(of))]

    return simulate(ask())[0], told


GOOD = secret("a", {"auths": auths("first")})

CASES: dict[str, tuple[Pod, tuple[Secret, ...], list[str], str]] = {
    # pod, secrets there are -> users, the names of those that failed
    "none are named":                   (pod(), (GOOD,), [], ""),
    "one is named":                     (pod("a"), (GOOD,), ["first"], ""),
    "of the older kind":                (pod("b"), (secret("b", auths("older"), kind=OLDER),), ["older"], ""),
    "in the order of the pod":          (
        pod("b", "a"), (GOOD, secret("b", auths("older"), kind=OLDER)), ["older", "first"], "",
    ),
    "one is missing":                   (pod("nosuch", "a"), (GOOD,), ["first"], "nosuch"),
    "two are missing":                  (pod("x", "y"), (), [], "x, y"),
    "of another namespace":             (pod("a"), (secret("a", {"auths": auths("u")}, namespace="other"),), [], "a"),
    "without a name":                   (pod("", "a"), (GOOD,), ["first"], ""),
    "of another type":                  (pod("o", "a"), (GOOD, secret("o", "x", kind="Opaque")), ["first"], ""),
    "one that is no JSON":              (pod("bad", "a"), (GOOD, secret("bad", "{")), ["first"], "bad"),
    "one with a bad entry":             (
        pod("half"), (secret("half", {"auths": {"x.test": 5, **auths("u")}}),), ["u"], "half",
    ),
}  # fmt: skip


@pytest.mark.parametrize("of, objects, users, failed", CASES.values(), ids=CASES.keys())
def test_pull_secrets_are_read(of: Pod, objects: tuple[Secret, ...], users: list[str], failed: str) -> None:
    found, told = read(of, *objects)
    text = f"Unable to retrieve some image pull secrets ({failed}); attempting to pull the image may not succeed."
    expected = [PodEvent(EventType.WARNING, "FailedToRetrieveImagePullSecret", text, "uid-web")]
    assert (found, told) == (users, expected if failed else [])


def test_an_api_that_is_not_well_keeps_nothing_from_being_tried() -> None:
    found, told = read(pod("a"), broken=True)
    assert (found, [event.reason for event in told]) == ([], ["FailedToRetrieveImagePullSecret"])


def test_without_an_api_there_are_no_secrets() -> None:
    told: list[PodEvent] = []
    secrets = PullSecrets(objects=None, record=lambda event, about: told.append(event))
    assert list(simulate(secrets.pull_secrets(pod("a")))[0]) == []
    assert [event.reason for event in told] == ["FailedToRetrieveImagePullSecret"]


def test_a_pod_that_names_no_secrets_needs_none() -> None:
    silent = pod()
    silent = replace(silent, spec=replace(silent.spec, image_pull_secrets=None))
    assert read(silent, GOOD) == ([], [])


def test_only_secrets_with_a_name_are_asked_for() -> None:
    asked: list[tuple[str, str]] = []

    class Noting(Broken):
        async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
            asked.append((namespace, name))
            return await super().get(kind, name, namespace)

    secrets = PullSecrets(objects=Noting(), record=lambda event, about: None)
    simulate(secrets.pull_secrets(pod("a", "", "b")))
    assert asked == [("team", "a"), ("team", "b")]
