"""Pull secrets: what is read, and the events for Secrets that are not available."""

import json
from base64 import b64encode
from functools import partial

import pytest
from msgspec.structs import replace

from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Pod, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import K
from podkeeper.rules.images.keyring import pull_credentials
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing import build
from podkeeper.testing.virtual_time import simulate
from tests.violations import violation

NEWER, OLDER = "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"


pod = partial(build.pod, namespace="team")


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


class UnavailableApi:
    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        raise ApiUnavailable("cannot reach the API")


def read(of: Pod, *objects: Secret, unavailable: bool = False) -> tuple[list[str], list[PodEvent]]:
    """Return the user names that a pod pulls with, and the recorded events."""
    recorded: list[PodEvent] = []

    def record(event: PodEvent, about: Pod | PodRecord | None) -> None:
        if about is not of:
            raise violation(f"{event} is about {about}")
        recorded.append(event)

    held = LocalObjects()
    held.replace("file", objects)
    secrets = PullSecrets(objects=UnavailableApi() if unavailable else held, record_event=record)

    async def users() -> list[str]:
        return [each.username for each in pull_credentials("reg.test/app", await secrets.pull_secrets(of))]

    return simulate(users())[0], recorded


GOOD = secret("a", {"auths": auths("first")})

CASES: dict[str, tuple[Pod, tuple[Secret, ...], list[str], str]] = {
    # pod, existing secrets -> users, names of failed secrets
    "none are named": (pod(), (GOOD,), [], ""),
    "one is named": (pod(pull_secrets=("a",)), (GOOD,), ["first"], ""),
    "of the older type": (pod(pull_secrets=("b",)), (secret("b", auths("older"), kind=OLDER),), ["older"], ""),
    "in the order of the pod": (
        pod(pull_secrets=("b", "a")), (GOOD, secret("b", auths("older"), kind=OLDER)), ["older", "first"], "",
    ),
    "one is missing": (pod(pull_secrets=("nosuch", "a")), (GOOD,), ["first"], "nosuch"),
    "two are missing": (pod(pull_secrets=("x", "y")), (), [], "x, y"),
    "of another namespace": (
        pod(pull_secrets=("a",)), (secret("a", {"auths": auths("u")}, namespace="other"),), [], "a",
    ),
    "without a name": (pod(pull_secrets=("", "a")), (GOOD,), ["first"], ""),
    "of another type": (pod(pull_secrets=("o", "a")), (GOOD, secret("o", "x", kind="Opaque")), ["first"], ""),
    "one with invalid JSON": (pod(pull_secrets=("bad", "a")), (GOOD, secret("bad", "{")), ["first"], "bad"),
    "one with a bad entry": (
        pod(pull_secrets=("half",)), (secret("half", {"auths": {"x.test": 5, **auths("u")}}),), ["u"], "half",
    ),
}  # fmt: skip


@pytest.mark.parametrize("of, objects, users, failed", CASES.values(), ids=CASES.keys())
def test_pull_secrets_are_read(of: Pod, objects: tuple[Secret, ...], users: list[str], failed: str) -> None:
    found, recorded = read(of, *objects)
    text = f"Unable to retrieve some image pull secrets ({failed}); attempting to pull the image may not succeed."
    expected = [PodEvent(EventType.WARNING, "FailedToRetrieveImagePullSecret", text, "uid-web")]
    assert (found, recorded) == (users, expected if failed else [])


def test_an_unavailable_api_does_not_prevent_a_pull() -> None:
    found, recorded = read(pod(pull_secrets=("a",)), unavailable=True)
    assert (found, [event.reason for event in recorded]) == ([], ["FailedToRetrieveImagePullSecret"])


def test_without_an_api_no_secret_is_found() -> None:
    recorded: list[PodEvent] = []
    secrets = PullSecrets(objects=None, record_event=lambda event, about: recorded.append(event))
    assert list(simulate(secrets.pull_secrets(pod(pull_secrets=("a",))))[0]) == []
    assert [event.reason for event in recorded] == ["FailedToRetrieveImagePullSecret"]


def test_a_pod_without_pull_secrets_reads_none() -> None:
    plain = pod()
    plain = replace(plain, spec=replace(plain.spec, image_pull_secrets=None))
    assert read(plain, GOOD) == ([], [])


def test_entries_without_a_name_are_skipped() -> None:
    requested: list[tuple[str, str]] = []

    class RecordingApi(UnavailableApi):
        async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
            requested.append((namespace, name))
            return await super().get(kind, name, namespace)

    secrets = PullSecrets(objects=RecordingApi(), record_event=lambda event, about: None)
    simulate(secrets.pull_secrets(pod(pull_secrets=("a", "", "b"))))
    assert requested == [("team", "a"), ("team", "b")]
