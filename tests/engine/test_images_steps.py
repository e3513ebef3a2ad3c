"""The image manager alone: the exact calls to its collaborators, in order."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.images import ImageManager
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import CallTimedOut, ImagePullFailed, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ImageFsUsage, ImageRecord
from podkeeper.rules.backoff.table import BackoffWait, Curve
from podkeeper.rules.images.keyring import Credentials, PullSecret, SecretName
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.status.containers import StartFailure
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.image_harness import IMAGE, config, pod_with_image, secret
from tests.violations import violation

Call = tuple[object, ...]
CURVE = Curve(initial=timedelta(seconds=7))
FOUND = ImageRecord(id="sha256:1", size_bytes=1234)
OWN, OTHER, NODE = (Credentials(username="me", password=password) for password in ("own", "other", "node"))


def event(type_: EventType, reason: str, message: str, uid: str = "uid-web") -> Call:
    return "event", PodEvent(type_, reason, message, uid, "spec.containers{c}")


def normal(reason: str, message: str) -> Call:
    return event(EventType.NORMAL, reason, message)


def warning(reason: str, message: str) -> Call:
    return event(EventType.WARNING, reason, message)


def shown(text: str) -> str:
    """Return the password in a docker configuration."""
    return next((word for word in ("own", "other", "node") if word in text), "none")


class Harness:
    """An image manager, and fakes of all its collaborators that record their calls."""

    def __init__(self, *, with_pull_manager: bool = True, with_node: bool = True) -> None:
        self.calls: list[Call] = []
        self.errors: dict[str, Exception] = {}  # by password
        self.present: ImageRecord | None = None
        self.inspect_error: Exception | None = None
        self.seconds = 0.0  # duration of a pull
        self.config_seconds = 0.0  # duration of reading the node's credentials
        self.private = False
        self.held: BackoffWait | None = None
        self.clock = VirtualClock()
        self.images = ImageManager(
            runtime=self,
            clock=self.clock,
            record_event=lambda event, about: self.calls.append(("event", event)),
            spawn=asyncio.ensure_future,
            backoff=stand_in(DurableBackoff, self),
            curve=CURVE,
            observer=_Observer(self),
            node_configs=self.node_configs if with_node else None,
            pull_manager=stand_in(ImagePullManager, _PullManager(self)) if with_pull_manager else None,
        )

    async def ensure(self, of: Pod, *secrets: PullSecret) -> ImageRecord | NotStarted:
        return await self.images.ensure(of, of.spec.containers[0], secrets)

    def taken(self) -> list[Call]:
        """Return and clear the calls."""
        taken, self.calls = self.calls, []
        return taken

    async def node_configs(self) -> Sequence[str]:
        await asyncio.sleep(self.config_seconds)
        return [config("node")]

    # The runtime.

    async def image(self, reference: str) -> ImageRecord | None:
        self.calls.append(("inspect", reference))
        if self.inspect_error is not None:
            raise self.inspect_error
        return self.present

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        password = shown(" ".join(secrets))
        self.calls.append(("pull", reference, password))
        await asyncio.sleep(self.seconds)
        if password in self.errors:
            raise self.errors[password]
        return FOUND

    async def list_images(self) -> Sequence[ImageRecord]:
        raise violation("only image garbage collection lists images")

    async def remove_image(self, reference: str) -> None:
        raise violation("only image garbage collection removes images")

    async def image_usage(self) -> ImageFsUsage | None:
        raise violation("only image garbage collection measures images")

    # Failed pulls.

    def hold_pull(self, pod: Pod, image: str, curve: Curve) -> BackoffWait | None:
        self.calls.append(("may pull", pod.metadata.uid, image, curve))
        return self.held

    def pull_failed(self, pod: Pod, image: str, cause: str, curve: Curve) -> None:
        self.calls.append(("pull failed", pod.metadata.uid, image, cause, curve))

    async def settle(self, uid: PodUID) -> None:
        self.calls.append(("settle", uid))


class _PullManager:
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    async def record_pull_intent(self, reference: str) -> None:
        self._harness.calls.append(("begin", reference))

    def record_image_pulled(self, reference: str, image_id: str, credentials: Credentials | None) -> None:
        source = None if credentials is None or credentials.source is None else credentials.source.name
        self._harness.calls.append(("pulled", reference, image_id, credentials, source))

    def record_pull_ended(self, reference: str, *, certain: bool) -> None:
        self._harness.calls.append(("ended", reference, certain))

    def must_attempt_image_pull(self, reference: str, image_id: str, offered: Sequence[Credentials]) -> bool:
        self._harness.calls.append(("may use", reference, image_id, *offered))
        return self._harness.private


class _Observer(Observer):
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def image_pulled(self, seconds: float, size_bytes: int) -> None:
        self._harness.calls.append(("observe", seconds, size_bytes))


def run_scenario(
    scenario: Callable[[Harness], Coroutine[Any, Any, None]], *, with_pull_manager: bool = True, with_node: bool = True
) -> None:
    async def main() -> None:
        await scenario(Harness(with_pull_manager=with_pull_manager, with_node=with_node))

    simulate(main())


PULLING = normal("Pulling", f'Pulling image "{IMAGE}"')
MAY_PULL: Call = ("may pull", "uid-web", IMAGE, CURVE)


def pulled(seconds: str, waited: str) -> Call:
    text = f'Successfully pulled image "{IMAGE}" in {seconds} ({waited} including waiting). Image size: 1234 bytes.'
    return normal("Pulled", text)


# Present images.


def test_a_present_image_is_used_if_the_pod_has_access() -> None:
    async def scenario(harness: Harness) -> None:
        harness.present = FOUND
        assert await harness.ensure(pod_with_image("web"), secret("own", "s")) is FOUND
        text = f'Container image "{IMAGE}" already present on machine and can be accessed by the pod'
        assert harness.taken() == [
            ("inspect", IMAGE),
            ("may use", IMAGE, "sha256:1", OWN, NODE),
            normal("Pulled", text),
        ]
        harness.private = True
        assert await harness.ensure(pod_with_image("web"), secret("own", "s")) is FOUND
        assert harness.taken()[2:4] == [MAY_PULL, PULLING]

    run_scenario(scenario)


def test_without_a_pull_manager_every_pod_may_use_a_present_image() -> None:
    async def scenario(harness: Harness) -> None:
        harness.present = FOUND
        assert await harness.ensure(pod_with_image("web")) is FOUND
        assert [call[0] for call in harness.calls] == ["inspect", "event"]

    run_scenario(scenario, with_pull_manager=False)


def test_a_present_image_without_access_fails_with_policy_never() -> None:
    async def scenario(harness: Harness) -> None:
        harness.present, harness.private = FOUND, True
        text = f'Container image "{IMAGE}" is not present with pull policy of Never'
        assert await harness.ensure(pod_with_image("web", policy="Never")) == NotStarted(
            StartFailure("ErrImageNeverPull", text)
        )
        assert harness.calls[-1] == warning("ErrImageNeverPull", text)
        assert len(harness.calls) == 3

    run_scenario(scenario)


def test_an_inspect_error_of_the_runtime_is_reported() -> None:
    async def scenario(harness: Harness) -> None:
        harness.inspect_error = RuntimeUnavailable("no socket")
        text = f'Failed to inspect image "{IMAGE}": no socket'
        assert await harness.ensure(pod_with_image("web")) == NotStarted(StartFailure("ImageInspectError", text))
        assert harness.calls == [("inspect", IMAGE), warning("InspectFailed", text)]

    run_scenario(scenario)


@pytest.mark.parametrize("image", ["", "UPPER//bad"])
def test_an_invalid_image_name_is_not_inspected(image: str) -> None:
    async def scenario(harness: Harness) -> None:
        answer = await harness.ensure(pod_with_image("web", image=image))
        assert isinstance(answer, NotStarted)
        assert answer.failure.reason == "InvalidImageName"
        assert harness.calls == [warning("InspectFailed", answer.failure.message or "")]

    run_scenario(scenario)


# Pulls.


def test_a_pull_makes_all_calls_in_order() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = 1.5
        assert await harness.ensure(pod_with_image("web", policy="Always"), secret("own", "s")) is FOUND
        assert harness.calls == [
            MAY_PULL,
            PULLING,
            ("begin", IMAGE),
            ("pull", IMAGE, "own"),
            ("pulled", IMAGE, "sha256:1", OWN, "s"),
            ("ended", IMAGE, True),
            ("pulled", IMAGE, "sha256:1", OWN, "s"),
            pulled("1.5s", "1.5s"),
            ("observe", 1.5, 1234),
        ]

    run_scenario(scenario)


def test_the_time_before_a_pull_counts_as_waiting() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds, harness.config_seconds = 1.5, 0.5
        await harness.ensure(pod_with_image("web", policy="Always"))
        assert harness.calls[-2:] == [pulled("1.5s", "2s"), ("observe", 2.0, 1234)]

    run_scenario(scenario)


def test_the_observer_is_optional() -> None:
    async def scenario(harness: Harness) -> None:
        harness.images = ImageManager(
            runtime=harness,
            clock=harness.clock,
            record_event=lambda event, about: None,
            spawn=asyncio.ensure_future,
            backoff=stand_in(DurableBackoff, harness),
        )
        assert await harness.ensure(pod_with_image("web")) is FOUND

    run_scenario(scenario)


def test_a_pull_without_credentials_and_without_a_pull_manager() -> None:
    async def scenario(harness: Harness) -> None:
        assert await harness.ensure(pod_with_image("web")) is FOUND
        assert harness.calls == [
            ("inspect", IMAGE),
            MAY_PULL,
            PULLING,
            ("pull", IMAGE, "none"),
            pulled("0s", "0s"),
            ("observe", 0.0, 1234),
        ]

    run_scenario(scenario, with_pull_manager=False, with_node=False)


def test_a_shared_pull_reports_the_waiting_time_of_each_pod() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = 3.0
        first = asyncio.create_task(harness.ensure(pod_with_image("web"), secret("own", "s")))
        await asyncio.sleep(2)
        second = asyncio.create_task(harness.ensure(pod_with_image("web"), secret("own", "t")))
        other = asyncio.create_task(harness.ensure(pod_with_image("web"), secret("other", "s")))
        await asyncio.gather(first, second, other)
        assert [call for call in harness.calls if call[0] == "pull"] == [
            ("pull", IMAGE, "own"),
            ("pull", IMAGE, "other"),
        ]
        recorded = [call for call in harness.calls if call[0] == "event" and call != PULLING]
        assert recorded == [pulled("3s", "3s"), pulled("1s", "1s"), pulled("3s", "3s")]
        pulls = [(call[3], call[4]) for call in harness.calls if call[0] == "pulled"]
        # The pull is recorded once, and then for each pod with its own secret.
        assert pulls == [(OWN, "s"), (OWN, "s"), (OWN, "t"), (OTHER, "s"), (OTHER, "s")]
        harness.taken()
        await harness.ensure(pod_with_image("web"), secret("own", "s"))
        assert ("pull", IMAGE, "own") in harness.calls

    run_scenario(scenario, with_node=False)


def test_a_pull_continues_when_the_waiting_pod_is_killed() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = 3.0
        first = asyncio.create_task(harness.ensure(pod_with_image("web")))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        assert await harness.ensure(pod_with_image("web")) is FOUND
        assert [call for call in harness.calls if call[0] == "pull"] == [("pull", IMAGE, "node")]

    run_scenario(scenario)


# Failures.


def test_a_pull_in_backoff_does_not_begin() -> None:
    until = BEGINNING + timedelta(seconds=40)

    async def scenario(harness: Harness) -> None:
        harness.held = BackoffWait(
            "ImagePullBackOff", "Back-off", until, PodEvent(EventType.NORMAL, "BackOff", "text", "uid-web")
        )
        assert await harness.ensure(pod_with_image("web")) == NotStarted(
            StartFailure("ImagePullBackOff", "Back-off"), until
        )
        assert harness.calls == [("inspect", IMAGE), MAY_PULL, normal("BackOff", "text")]

    run_scenario(scenario)


FAILURES: dict[str, tuple[dict[str, Exception], list[str], str, str, bool]] = {
    # errors -> credentials tried, reason, message, certain that nothing was pulled
    "refused": (
        {"own": ImagePullFailed("denied"), "node": ImagePullFailed("unknown")},
        ["own", "node"],
        "ErrImagePull",
        "[denied, unknown]",
        True,
    ),
    "refused for the same reason": (
        {"own": ImagePullFailed("denied"), "node": ImagePullFailed("denied")},
        ["own", "node"],
        "ErrImagePull",
        "denied",
        True,
    ),
    "the first answer is lost": (
        {"own": CallTimedOut("no answer"), "node": ImagePullFailed("unknown")},
        ["own", "node"],
        "ErrImagePull",
        "no answer",
        False,
    ),
    "the second answer is lost": (
        {"own": ImagePullFailed("denied"), "node": CallTimedOut("no answer")},
        ["own", "node"],
        "ErrImagePull",
        "no answer",
        False,
    ),
}


@pytest.mark.parametrize("errors, tried, reason, text, certain", FAILURES.values(), ids=FAILURES.keys())
def test_a_failed_pull_is_recorded_and_backs_off(
    errors: dict[str, Exception], tried: list[str], reason: str, text: str, certain: bool
) -> None:
    async def scenario(harness: Harness) -> None:
        harness.errors = errors
        assert await harness.ensure(pod_with_image("web"), secret("own", "s")) == NotStarted(StartFailure(reason, text))
        assert harness.calls == [
            ("inspect", IMAGE),
            MAY_PULL,
            PULLING,
            ("begin", IMAGE),
            *(("pull", IMAGE, password) for password in tried),
            ("ended", IMAGE, certain),
            warning("Failed", f'Failed to pull image "{IMAGE}": {text}'),
            ("pull failed", "uid-web", IMAGE, f"{reason}: {text}", CURVE),
            ("settle", "uid-web"),
        ]

    run_scenario(scenario)


@pytest.mark.parametrize(
    "error, reason",
    [(ImagePullFailed("no", "RegistryUnavailable"), "RegistryUnavailable"), (TryLater("no"), "ErrImagePull")],
)
def test_the_reason_of_a_failed_pull_comes_from_the_runtime(error: Exception, reason: str) -> None:
    async def scenario(harness: Harness) -> None:
        harness.errors = {"none": error}
        assert await harness.ensure(pod_with_image("web")) == NotStarted(StartFailure(reason, "no"))

    run_scenario(scenario, with_node=False)


def test_credentials_are_tried_until_the_registry_accepts_one() -> None:
    async def scenario(harness: Harness) -> None:
        harness.errors = {"own": ImagePullFailed("denied")}
        second = PullSecret(config("other"), SecretName("team", "t"))
        assert await harness.ensure(pod_with_image("web"), secret("own", "s"), second) is FOUND
        assert [call[2] for call in harness.calls if call[0] == "pull"] == ["own", "other"]
        assert [call[3:] for call in harness.calls if call[0] == "pulled"] == [(OTHER, "t"), (OTHER, "t")]

    run_scenario(scenario)


def test_annotations_tune_the_backoff_curve() -> None:
    async def scenario(harness: Harness) -> None:
        harness.errors = {"node": ImagePullFailed("denied")}
        of = pod_with_image("web")
        annotations = {"podkeeper.io/pull-backoff-initial": "2s"}
        tuned = replace(of, metadata=replace(of.metadata, annotations=annotations))
        await harness.ensure(tuned)
        curves = {call[-1] for call in harness.calls if call[0] in ("may pull", "pull failed")}
        assert curves == {CURVE.tuned(initial=timedelta(seconds=2), maximum=None)}

    run_scenario(scenario)
