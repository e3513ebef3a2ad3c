"""Images: pull policies, one pull for all who wait, and back-off per pod and image."""

import asyncio
import json

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ImageRecord
from podkeeper.rules.keyring import PullSecret, SecretName
from podkeeper.rules.plan.result import NotStarted
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_house import House, container, house, pod

IMAGE = "registry.example/app:v1"
ABSENT = "registry.invalid/nosuch:1"


def wants(image: str = IMAGE, policy: str = "IfNotPresent", name: str = "web") -> Pod:
    return pod(container("c", image=image, policy=policy), name=name)


async def ensure(home: House, of: Pod, *secrets: PullSecret) -> ImageRecord | NotStarted:
    return await home.images.ensure(of, of.spec.containers[0], secrets)


def secret(password: str, name: str = "s", key: str = "registry.example") -> PullSecret:
    config = json.dumps({"auths": {key: {"username": "me", "password": password}}})
    return PullSecret(config, SecretName("default", name, f"uid-{name}"))


def pulls(home: House) -> int:
    return len(home.changes(Operation.PULL_IMAGE))


POLICIES = {
    # policy, is it there -> pulls, reasons of the events
    "IfNotPresent uses what is there":      ("IfNotPresent", True, 0, ["Pulled"]),
    "IfNotPresent pulls what is not":       ("IfNotPresent", False, 1, ["Pulling", "Pulled"]),
    "Always pulls what is there":           ("Always", True, 1, ["Pulling", "Pulled"]),
    "Never uses what is there":             ("Never", True, 0, ["Pulled"]),
    "Never gives up on what is not":        ("Never", False, 0, ["ErrImageNeverPull"]),
}  # fmt: skip


@pytest.mark.parametrize("policy, there, pulled, reasons", POLICIES.values(), ids=POLICIES.keys())
def test_the_policy_decides_whether_an_image_is_pulled(
    policy: str, there: bool, pulled: int, reasons: list[str]
) -> None:
    async def scenario() -> None:
        async with house() as home:
            if there:
                await home.fake.pull_image(IMAGE)
            before = pulls(home)
            found = await ensure(home, wants(policy=policy))
            assert isinstance(found, ImageRecord) is (reasons[-1] == "Pulled")
            assert (pulls(home) - before, [reason for reason, _ in home.events()]) == (pulled, reasons)

    simulate(scenario())


def failure_of(of: Pod, fault: str | None = None) -> tuple[str, str, list[tuple[str, str]]]:
    """Why a container has to wait: reason, message and events."""

    async def scenario() -> tuple[str, str, list[tuple[str, str]]]:
        async with house() as home:
            home.fake.missing_images.add(ABSENT)
            if fault is not None:
                home.fake.faults.fail(fault, error=RuntimeUnavailable)
            found = await ensure(home, of)
            assert isinstance(found, NotStarted)
            return found.failure.reason, found.failure.message, home.events()

    return simulate(scenario())[0]


def test_a_name_that_is_none_is_said_to_be_so() -> None:
    text = 'Failed to apply default image tag "UPPER//bad": couldn\'t parse image name "UPPER//bad": '
    text += "invalid reference format"
    assert failure_of(wants("UPPER//bad")) == ("InvalidImageName", text, [("InspectFailed", text)])


def test_an_absent_image_that_may_not_be_pulled_is_said_to_be_so() -> None:
    text = f'Container image "{IMAGE}" is not present with pull policy of Never'
    assert failure_of(wants(policy="Never")) == ("ErrImageNeverPull", text, [("ErrImageNeverPull", text)])


def test_a_runtime_that_cannot_tell_is_said_to_be_so() -> None:
    reason, message, events = failure_of(wants(), Operation.IMAGE)
    assert reason == "ImageInspectError"
    assert message.startswith(f'Failed to inspect image "{IMAGE}": cannot')
    assert [reason for reason, _ in events] == ["InspectFailed"]


def test_a_failed_pull_is_told_with_the_runtimes_words() -> None:
    reason, message, events = failure_of(wants(ABSENT))
    assert (reason, message) == ("ErrImagePull", f"cannot pull image {ABSENT}: not found")
    assert events == [
        ("Pulling", f'Pulling image "{ABSENT}"'),
        ("Failed", f'Failed to pull image "{ABSENT}": cannot pull image {ABSENT}: not found'),
    ]


def test_a_pull_without_an_answer_is_an_ordinary_failure() -> None:
    assert failure_of(wants(), Operation.PULL_IMAGE)[0] == "ErrImagePull"


def test_a_failing_pull_is_held_back_for_this_pod_and_image_only() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.fake.missing_images.add(ABSENT)
            first, other = wants(ABSENT), wants(ABSENT, name="other")
            await ensure(home, first)
            held = await ensure(home, first)
            assert isinstance(held, NotStarted)
            assert held.failure.reason == "ImagePullBackOff"
            assert held.failure.message == (
                f'Back-off pulling image "{ABSENT}": ErrImagePull: cannot pull image {ABSENT}: not found'
            )
            assert held.until is not None
            assert (held.until - home.clock.now()).total_seconds() == 10
            assert home.told[-1].container_path == "spec.containers{c}"
            assert pulls(home) == 1
            await ensure(home, other)
            assert pulls(home) == 2
            await asyncio.sleep(10)
            await ensure(home, first)
            assert pulls(home) == 3

    simulate(scenario())


def test_a_pod_may_ask_for_other_patience() -> None:
    async def scenario() -> float:
        async with house() as home:
            home.fake.missing_images.add(ABSENT)
            patient = pod(container("c", image=ABSENT), annotations={"podkeeper.io/pull-backoff-initial": "2s"})
            await ensure(home, patient)
            held = await ensure(home, patient)
            assert isinstance(held, NotStarted)
            assert held.until is not None
            return (held.until - home.clock.now()).total_seconds()

    assert simulate(scenario())[0] == 2


def test_all_who_want_an_image_wait_for_one_pull() -> None:
    async def scenario() -> House:
        async with house() as home:
            home.fake.delays[Operation.PULL_IMAGE] = 10
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(ensure(home, wants(name=f"web{number}")))
                await asyncio.sleep(4)
                group.create_task(ensure(home, wants(name="late")))
            return home

    home, seconds = simulate(scenario())
    assert (pulls(home), seconds) == (1, 10.0)
    texts = [text for reason, text in home.events("Pulled")]
    assert len(texts) == 21
    assert texts[0] == (
        f'Successfully pulled image "{IMAGE}" in 10s (10s including waiting). Image size: 10485760 bytes.'
    )
    assert "in 6s (6s including waiting)" in texts[-1]


def test_credentials_are_not_shared() -> None:
    async def scenario() -> House:
        async with house() as home:
            home.fake.delays[Operation.PULL_IMAGE] = 10
            async with asyncio.TaskGroup() as group:
                group.create_task(ensure(home, wants(policy="Always"), secret("mine")))
                group.create_task(ensure(home, wants(policy="Always", name="other"), secret("yours")))
            return home

    assert pulls(simulate(scenario())[0]) == 2


def test_a_pull_goes_on_when_the_pod_that_began_it_is_killed() -> None:
    async def scenario() -> House:
        async with house() as home:
            home.fake.delays[Operation.PULL_IMAGE] = 10
            async with asyncio.TaskGroup() as group:
                killed = group.create_task(ensure(home, wants()))
                await asyncio.sleep(1)
                waiting = group.create_task(ensure(home, wants(name="other")))
                await asyncio.sleep(1)
                killed.cancel()
                await asyncio.wait({killed})
                assert home.clock.monotonic() == 2, "who is killed does not wait for the pull"
            assert isinstance(waiting.result(), ImageRecord)
            return home

    home, seconds = simulate(scenario())
    assert (pulls(home), seconds) == (1, 10.0)


def test_the_next_pull_after_a_finished_one_is_a_new_one() -> None:
    async def scenario() -> House:
        async with house() as home:
            await ensure(home, wants(policy="Always"))
            await ensure(home, wants(policy="Always"))
            return home

    assert pulls(simulate(scenario())[0]) == 2


def test_a_name_without_a_tag_is_pulled_as_latest_and_shown_as_it_was_written() -> None:
    async def scenario() -> House:
        async with house() as home:
            await ensure(home, wants("busybox", policy="Always"))
            return home

    home = simulate(scenario())[0]
    assert home.changes(Operation.PULL_IMAGE) == [(Operation.PULL_IMAGE, "busybox:latest")]
    assert home.events("Pulling") == [("Pulling", 'Pulling image "busybox"')]
