"""Images: pull policies, shared pulls, and backoff per pod and image."""

import asyncio
import json
from functools import partial

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ImageRecord
from podkeeper.rules.images.keyring import PullSecret, SecretName
from podkeeper.rules.plan.result import NotStarted
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.build import pod
from podkeeper.testing.virtual_time import simulate
from tests.engine import image_harness
from tests.engine.execution_harness import ExecutionHarness, container, running_harness

IMAGE = "registry.example/app:v1"
ABSENT = "registry.invalid/nosuch:1"


pod_with_image = partial(image_harness.pod_with_image, image=IMAGE, namespace="default")


async def ensure(harness: ExecutionHarness, of: Pod, *secrets: PullSecret) -> ImageRecord | NotStarted:
    return await harness.images.ensure(of, of.spec.containers[0], secrets)


def secret(password: str, name: str = "s", key: str = "registry.example") -> PullSecret:
    config = json.dumps({"auths": {key: {"username": "me", "password": password}}})
    return PullSecret(config, SecretName("default", name, f"uid-{name}"))


def pulls(harness: ExecutionHarness) -> int:
    return len(harness.changes(Operation.PULL_IMAGE))


POLICIES = {
    # policy, present -> pulls, reasons of the events
    "IfNotPresent uses a present image":     ("IfNotPresent", True, 0, ["Pulled"]),
    "IfNotPresent pulls an absent image":   ("IfNotPresent", False, 1, ["Pulling", "Pulled"]),
    "Always pulls a present image":         ("Always", True, 1, ["Pulling", "Pulled"]),
    "Never uses a present image":           ("Never", True, 0, ["Pulled"]),
    "Never fails for an absent image":      ("Never", False, 0, ["ErrImageNeverPull"]),
}  # fmt: skip


@pytest.mark.parametrize("policy, present, pulled, reasons", POLICIES.values(), ids=POLICIES.keys())
def test_the_policy_decides_whether_an_image_is_pulled(
    policy: str, present: bool, pulled: int, reasons: list[str]
) -> None:
    async def scenario() -> None:
        async with running_harness() as harness:
            if present:
                await harness.fake.pull_image(IMAGE)
            before = pulls(harness)
            found = await ensure(harness, pod_with_image(policy=policy))
            assert isinstance(found, ImageRecord) is (reasons[-1] == "Pulled")
            assert (pulls(harness) - before, [reason for reason, _ in harness.events()]) == (pulled, reasons)

    simulate(scenario())


def failure_of(of: Pod, fault: str | None = None) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the reason, the message and the events of a failed attempt."""

    async def scenario() -> tuple[str, str, list[tuple[str, str]]]:
        async with running_harness() as harness:
            harness.fake.missing_images.add(ABSENT)
            if fault is not None:
                harness.fake.faults.fail(fault, error=RuntimeUnavailable)
            found = await ensure(harness, of)
            assert isinstance(found, NotStarted)
            return found.failure.reason, found.failure.message, harness.events()

    return simulate(scenario())[0]


def test_an_invalid_image_name_is_reported() -> None:
    text = 'Failed to apply default image tag "UPPER//bad": couldn\'t parse image name "UPPER//bad": '
    text += "invalid reference format"
    assert failure_of(pod_with_image(image="UPPER//bad")) == ("InvalidImageName", text, [("InspectFailed", text)])


def test_an_absent_image_with_policy_never_is_reported() -> None:
    text = f'Container image "{IMAGE}" is not present with pull policy of Never'
    assert failure_of(pod_with_image(policy="Never")) == ("ErrImageNeverPull", text, [("ErrImageNeverPull", text)])


def test_a_failed_image_inspection_is_reported() -> None:
    reason, message, events = failure_of(pod_with_image(), Operation.IMAGE)
    assert reason == "ImageInspectError"
    assert message.startswith(f'Failed to inspect image "{IMAGE}": cannot')
    assert [reason for reason, _ in events] == ["InspectFailed"]


def test_a_failed_pull_is_recorded_with_the_message_of_the_runtime() -> None:
    reason, message, events = failure_of(pod_with_image(image=ABSENT))
    assert (reason, message) == ("ErrImagePull", f"cannot pull image {ABSENT}: not found")
    assert events == [
        ("Pulling", f'Pulling image "{ABSENT}"'),
        ("Failed", f'Failed to pull image "{ABSENT}": cannot pull image {ABSENT}: not found'),
    ]


def test_a_pull_without_an_answer_is_an_image_pull_error() -> None:
    assert failure_of(pod_with_image(), Operation.PULL_IMAGE)[0] == "ErrImagePull"


def test_a_failed_pull_is_in_backoff_only_for_this_pod_and_image() -> None:
    async def scenario() -> None:
        async with running_harness() as harness:
            harness.fake.missing_images.add(ABSENT)
            first, other = pod_with_image(image=ABSENT), pod_with_image(image=ABSENT, name="other")
            await ensure(harness, first)
            held = await ensure(harness, first)
            assert isinstance(held, NotStarted)
            assert held.failure.reason == "ImagePullBackOff"
            assert held.failure.message == (
                f'Back-off pulling image "{ABSENT}": ErrImagePull: cannot pull image {ABSENT}: not found'
            )
            assert held.until is not None
            assert (held.until - harness.clock.now()).total_seconds() == 10
            assert harness.recorded[-1].container_path == "spec.containers{c}"
            assert pulls(harness) == 1
            await ensure(harness, other)
            assert pulls(harness) == 2
            await asyncio.sleep(10)
            await ensure(harness, first)
            assert pulls(harness) == 3

    simulate(scenario())


def test_an_annotation_sets_the_initial_pull_backoff() -> None:
    async def scenario() -> float:
        async with running_harness() as harness:
            harness.fake.missing_images.add(ABSENT)
            tuned = pod("web", container("c", image=ABSENT), annotations={"podkeeper.io/pull-backoff-initial": "2s"})
            await ensure(harness, tuned)
            held = await ensure(harness, tuned)
            assert isinstance(held, NotStarted)
            assert held.until is not None
            return (held.until - harness.clock.now()).total_seconds()

    assert simulate(scenario())[0] == 2


def test_pods_with_the_same_image_share_one_pull() -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.delays[Operation.PULL_IMAGE] = 10
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(ensure(harness, pod_with_image(name=f"web{number}")))
                await asyncio.sleep(4)
                group.create_task(ensure(harness, pod_with_image(name="late")))
            return harness

    harness, seconds = simulate(scenario())
    assert (pulls(harness), seconds) == (1, 10.0)
    texts = [text for reason, text in harness.events("Pulled")]
    assert len(texts) == 21
    assert texts[0] == (
        f'Successfully pulled image "{IMAGE}" in 10s (10s including waiting). Image size: 10485760 bytes.'
    )
    assert "in 6s (6s including waiting)" in texts[-1]


def test_pods_with_different_credentials_do_not_share_a_pull() -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.delays[Operation.PULL_IMAGE] = 10
            async with asyncio.TaskGroup() as group:
                group.create_task(ensure(harness, pod_with_image(policy="Always"), secret("mine")))
                group.create_task(ensure(harness, pod_with_image(policy="Always", name="other"), secret("yours")))
            return harness

    assert pulls(simulate(scenario())[0]) == 2


def test_a_pull_continues_when_the_pod_that_began_it_is_killed() -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.delays[Operation.PULL_IMAGE] = 10
            async with asyncio.TaskGroup() as group:
                killed = group.create_task(ensure(harness, pod_with_image()))
                await asyncio.sleep(1)
                waiting = group.create_task(ensure(harness, pod_with_image(name="other")))
                await asyncio.sleep(1)
                killed.cancel()
                await asyncio.wait({killed})
                assert harness.clock.monotonic() == 2, "a killed pod does not wait for the pull"
            assert isinstance(waiting.result(), ImageRecord)
            return harness

    harness, seconds = simulate(scenario())
    assert (pulls(harness), seconds) == (1, 10.0)


def test_a_finished_pull_is_not_reused() -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await ensure(harness, pod_with_image(policy="Always"))
            await ensure(harness, pod_with_image(policy="Always"))
            return harness

    assert pulls(simulate(scenario())[0]) == 2


def test_a_name_without_a_tag_is_pulled_as_latest_and_shown_as_written() -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await ensure(harness, pod_with_image(image="busybox", policy="Always"))
            return harness

    harness = simulate(scenario())[0]
    assert harness.changes(Operation.PULL_IMAGE) == [(Operation.PULL_IMAGE, "busybox:latest")]
    assert harness.events("Pulling") == [("Pulling", 'Pulling image "busybox"')]
