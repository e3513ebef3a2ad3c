"""The image manager alone: every call to its neighbours, with all that is passed on, in order."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.image_access import PullBook
from podkeeper.engine.images import ImageManager
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import CallTimedOut, ImagePullFailed, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ImageFsUsage, ImageRecord
from podkeeper.rules.backoff import Curve, Held
from podkeeper.rules.keyring import Credentials, PullSecret, SecretName
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.status.containers import StartFailure
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.image_house import IMAGE, config, secret, wants
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
    """The password in a configuration."""
    return next((word for word in ("own", "other", "node") if word in text), "none")


class Desk:
    """All neighbours of an image manager in one, which notes their calls, and the image manager."""

    def __init__(self, *, with_book: bool = True, with_node: bool = True) -> None:
        self.calls: list[Call] = []
        self.errors: dict[str, Exception] = {}  # by the password that is shown to the registry
        self.present: ImageRecord | None = None
        self.look_error: Exception | None = None
        self.seconds = 0.0  # that a pull takes
        self.config_seconds = 0.0  # that reading the node's own credentials takes
        self.private = False
        self.held: Held | None = None
        self.clock = VirtualClock()
        self.images = ImageManager(
            runtime=self,
            clock=self.clock,
            record=lambda event, about: self.calls.append(("event", event)),
            spawn=asyncio.ensure_future,
            pulls=stand_in(DurableBackoff, self),
            curve=CURVE,
            observer=_Observer(self),
            node_configs=self.node_configs if with_node else None,
            book=stand_in(PullBook, _Book(self)) if with_book else None,
        )

    async def ensure(self, of: Pod, *secrets: PullSecret) -> ImageRecord | NotStarted:
        return await self.images.ensure(of, of.spec.containers[0], secrets)

    def taken(self) -> list[Call]:
        """The calls since the last time."""
        taken, self.calls = self.calls, []
        return taken

    async def node_configs(self) -> Sequence[str]:
        await asyncio.sleep(self.config_seconds)
        return [config("node")]

    # The runtime.

    async def image(self, reference: str) -> ImageRecord | None:
        self.calls.append(("look", reference))
        if self.look_error is not None:
            raise self.look_error
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

    def hold_pull(self, pod: Pod, image: str, curve: Curve) -> Held | None:
        self.calls.append(("may pull", pod.metadata.uid, image, curve))
        return self.held

    def pull_failed(self, pod: Pod, image: str, cause: str, curve: Curve) -> None:
        self.calls.append(("pull failed", pod.metadata.uid, image, cause, curve))

    async def settle(self, uid: PodUID) -> None:
        self.calls.append(("settle", uid))


class _Book:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def begin(self, reference: str) -> None:
        self._desk.calls.append(("begin", reference))

    def pulled(self, reference: str, image_id: str, credentials: Credentials | None) -> None:
        source = None if credentials is None or credentials.source is None else credentials.source.name
        self._desk.calls.append(("pulled", reference, image_id, credentials, source))

    def ended(self, reference: str, *, surely: bool) -> None:
        self._desk.calls.append(("ended", reference, surely))

    def must_pull(self, reference: str, image_id: str, offered: Sequence[Credentials]) -> bool:
        self._desk.calls.append(("may use", reference, image_id, *offered))
        return self._desk.private


class _Observer(Observer):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def pulled(self, seconds: float, size_bytes: int) -> None:
        self._desk.calls.append(("observe", seconds, size_bytes))


def at_desk(
    story: Callable[[Desk], Coroutine[Any, Any, None]], *, with_book: bool = True, with_node: bool = True
) -> None:
    async def played() -> None:
        await story(Desk(with_book=with_book, with_node=with_node))

    simulate(played())


PULLING = normal("Pulling", f'Pulling image "{IMAGE}"')
MAY_PULL: Call = ("may pull", "uid-web", IMAGE, CURVE)


def pulled(seconds: str, waited: str) -> Call:
    text = f'Successfully pulled image "{IMAGE}" in {seconds} ({waited} including waiting). Image size: 1234 bytes.'
    return normal("Pulled", text)


# Images that are there.


def test_an_image_that_is_there_is_used_if_the_pod_may_use_it() -> None:
    async def story(desk: Desk) -> None:
        desk.present = FOUND
        assert await desk.ensure(wants("web"), secret("own", "s")) is FOUND
        text = f'Container image "{IMAGE}" already present on machine and can be accessed by the pod'
        assert desk.taken() == [
            ("look", IMAGE),
            ("may use", IMAGE, "sha256:1", OWN, NODE),
            normal("Pulled", text),
        ]
        desk.private = True
        assert await desk.ensure(wants("web"), secret("own", "s")) is FOUND
        assert desk.taken()[2:4] == [MAY_PULL, PULLING]

    at_desk(story)


def test_without_a_book_an_image_that_is_there_is_everybodys() -> None:
    async def story(desk: Desk) -> None:
        desk.present = FOUND
        assert await desk.ensure(wants("web")) is FOUND
        assert [call[0] for call in desk.calls] == ["look", "event"]

    at_desk(story, with_book=False)


def test_an_image_that_may_not_be_pulled_and_not_be_used_is_given_up() -> None:
    async def story(desk: Desk) -> None:
        desk.present, desk.private = FOUND, True
        text = f'Container image "{IMAGE}" is not present with pull policy of Never'
        assert await desk.ensure(wants("web", policy="Never")) == NotStarted(StartFailure("ErrImageNeverPull", text))
        assert desk.calls[-1] == warning("ErrImageNeverPull", text)
        assert len(desk.calls) == 3

    at_desk(story)


def test_a_runtime_that_cannot_tell_whether_an_image_is_there_is_named() -> None:
    async def story(desk: Desk) -> None:
        desk.look_error = RuntimeUnavailable("no socket")
        text = f'Failed to inspect image "{IMAGE}": no socket'
        assert await desk.ensure(wants("web")) == NotStarted(StartFailure("ImageInspectError", text))
        assert desk.calls == [("look", IMAGE), warning("InspectFailed", text)]

    at_desk(story)


@pytest.mark.parametrize("image", ["", "UPPER//bad"])
def test_a_name_that_cannot_be_read_is_not_looked_for(image: str) -> None:
    async def story(desk: Desk) -> None:
        answer = await desk.ensure(wants("web", image))
        assert isinstance(answer, NotStarted)
        assert answer.failure.reason == "InvalidImageName"
        assert desk.calls == [warning("InspectFailed", answer.failure.message or "")]

    at_desk(story)


# Pulls.


def test_a_pull_from_its_backoff_to_its_event() -> None:
    async def story(desk: Desk) -> None:
        desk.seconds = 1.5
        assert await desk.ensure(wants("web", policy="Always"), secret("own", "s")) is FOUND
        assert desk.calls == [
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

    at_desk(story)


def test_the_time_until_a_pull_begins_is_part_of_the_wait() -> None:
    async def story(desk: Desk) -> None:
        desk.seconds, desk.config_seconds = 1.5, 0.5
        await desk.ensure(wants("web", policy="Always"))
        assert desk.calls[-2:] == [pulled("1.5s", "2s"), ("observe", 2.0, 1234)]

    at_desk(story)


def test_a_pull_may_go_unobserved() -> None:
    async def story(desk: Desk) -> None:
        desk.images = ImageManager(
            runtime=desk,
            clock=desk.clock,
            record=lambda event, about: None,
            spawn=asyncio.ensure_future,
            pulls=stand_in(DurableBackoff, desk),
        )
        assert await desk.ensure(wants("web")) is FOUND

    at_desk(story)


def test_a_pull_without_credentials_and_without_a_book() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.ensure(wants("web")) is FOUND
        assert desk.calls == [
            ("look", IMAGE),
            MAY_PULL,
            PULLING,
            ("pull", IMAGE, "none"),
            pulled("0s", "0s"),
            ("observe", 0.0, 1234),
        ]

    at_desk(story, with_book=False, with_node=False)


def test_pods_that_want_the_same_image_share_a_pull_and_each_is_told_how_long_it_waited() -> None:
    async def story(desk: Desk) -> None:
        desk.seconds = 3.0
        first = asyncio.create_task(desk.ensure(wants("web"), secret("own", "s")))
        await asyncio.sleep(2)
        second = asyncio.create_task(desk.ensure(wants("web"), secret("own", "t")))
        other = asyncio.create_task(desk.ensure(wants("web"), secret("other", "s")))
        await asyncio.gather(first, second, other)
        assert [call for call in desk.calls if call[0] == "pull"] == [("pull", IMAGE, "own"), ("pull", IMAGE, "other")]
        told = [call for call in desk.calls if call[0] == "event" and call != PULLING]
        assert told == [pulled("3s", "3s"), pulled("1s", "1s"), pulled("3s", "3s")]
        noted = [(call[3], call[4]) for call in desk.calls if call[0] == "pulled"]
        # The pull is noted once, and then for each pod with its own secret.
        assert noted == [(OWN, "s"), (OWN, "s"), (OWN, "t"), (OTHER, "s"), (OTHER, "s")]
        desk.taken()
        await desk.ensure(wants("web"), secret("own", "s"))
        assert ("pull", IMAGE, "own") in desk.calls

    at_desk(story, with_node=False)


def test_a_pull_goes_on_when_the_pod_that_waits_for_it_is_killed() -> None:
    async def story(desk: Desk) -> None:
        desk.seconds = 3.0
        first = asyncio.create_task(desk.ensure(wants("web")))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        assert await desk.ensure(wants("web")) is FOUND
        assert [call for call in desk.calls if call[0] == "pull"] == [("pull", IMAGE, "node")]

    at_desk(story)


# Failures.


def test_a_pull_that_is_held_back_is_not_begun() -> None:
    until = BEGINNING + timedelta(seconds=40)

    async def story(desk: Desk) -> None:
        desk.held = Held(
            "ImagePullBackOff", "Back-off", until, PodEvent(EventType.NORMAL, "BackOff", "text", "uid-web")
        )
        assert await desk.ensure(wants("web")) == NotStarted(StartFailure("ImagePullBackOff", "Back-off"), until)
        assert desk.calls == [("look", IMAGE), MAY_PULL, normal("BackOff", "text")]

    at_desk(story)


FAILURES: dict[str, tuple[dict[str, Exception], list[str], str, str, bool]] = {
    # what fails -> what is tried, reason and message, is it sure that nothing was pulled
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
    "one answer was lost": (
        {"own": CallTimedOut("no answer"), "node": ImagePullFailed("unknown")},
        ["own", "node"],
        "ErrImagePull",
        "no answer",
        False,
    ),
    "another answer was lost": (
        {"own": ImagePullFailed("denied"), "node": CallTimedOut("no answer")},
        ["own", "node"],
        "ErrImagePull",
        "no answer",
        False,
    ),
}


@pytest.mark.parametrize("errors, tried, reason, text, surely", FAILURES.values(), ids=FAILURES.keys())
def test_a_failed_pull_is_told_and_held_back(
    errors: dict[str, Exception], tried: list[str], reason: str, text: str, surely: bool
) -> None:
    async def story(desk: Desk) -> None:
        desk.errors = errors
        assert await desk.ensure(wants("web"), secret("own", "s")) == NotStarted(StartFailure(reason, text))
        assert desk.calls == [
            ("look", IMAGE),
            MAY_PULL,
            PULLING,
            ("begin", IMAGE),
            *(("pull", IMAGE, password) for password in tried),
            ("ended", IMAGE, surely),
            warning("Failed", f'Failed to pull image "{IMAGE}": {text}'),
            ("pull failed", "uid-web", IMAGE, f"{reason}: {text}", CURVE),
            ("settle", "uid-web"),
        ]

    at_desk(story)


@pytest.mark.parametrize(
    "error, reason",
    [(ImagePullFailed("no", "RegistryUnavailable"), "RegistryUnavailable"), (TryLater("no"), "ErrImagePull")],
)
def test_the_reason_of_a_failed_pull_is_the_runtimes_own(error: Exception, reason: str) -> None:
    async def story(desk: Desk) -> None:
        desk.errors = {"none": error}
        assert await desk.ensure(wants("web")) == NotStarted(StartFailure(reason, "no"))

    at_desk(story, with_node=False)


def test_credentials_are_tried_until_one_opens_the_image() -> None:
    async def story(desk: Desk) -> None:
        desk.errors = {"own": ImagePullFailed("denied")}
        second = PullSecret(config("other"), SecretName("team", "t"))
        assert await desk.ensure(wants("web"), secret("own", "s"), second) is FOUND
        assert [call[2] for call in desk.calls if call[0] == "pull"] == ["own", "other"]
        assert [call[3:] for call in desk.calls if call[0] == "pulled"] == [(OTHER, "t"), (OTHER, "t")]

    at_desk(story)


def test_the_pod_may_tune_its_backoff() -> None:
    async def story(desk: Desk) -> None:
        desk.errors = {"node": ImagePullFailed("denied")}
        of = wants("web")
        annotations = {"podkeeper.io/pull-backoff-initial": "2s"}
        tuned = replace(of, metadata=replace(of.metadata, annotations=annotations))
        await desk.ensure(tuned)
        curves = {call[-1] for call in desk.calls if call[0] in ("may pull", "pull failed")}
        assert curves == {CURVE.tuned(initial=timedelta(seconds=2), maximum=None)}

    at_desk(story)
