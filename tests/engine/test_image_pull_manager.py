"""Private images: which credentials are tried, and which pods may use a present image."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import CallTimedOut, ImagePullFailed
from podkeeper.rules.images.pull_access import Verification, VerificationPolicy
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.runtimes.fake.faults import Fault
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.image_harness import IMAGE, ImageHarness, config, pod_with_image, running_image_harness, secret


class OddError(ImagePullFailed):
    """Another error of a registry."""

    def __init__(self, message: str) -> None:
        super().__init__("other error")


class Node:
    """The state that survives the agent."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.fake = FakeRuntime(self.clock)
        self.fake.private_images[IMAGE] = frozenset({"right"})
        self.journal = FakeJournal()


def run_scenario(scenario: Callable[[Node], Awaitable[None]]) -> Node:
    async def main() -> Node:
        node = Node()
        await scenario(node)
        return node

    return simulate(main())[0]


def run_agent(scenario: Callable[[ImageHarness], Awaitable[None]], *node_configs: str) -> None:
    async def run(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal, node=node_configs) as harness:
            await scenario(harness)

    run_scenario(run)


# Which credentials are tried.


def test_credentials_are_tried_one_by_one_until_one_is_accepted() -> None:
    async def scenario(harness: ImageHarness) -> None:
        wrong, right, never = secret("wrong", "a", key="reg.test/app"), secret("right", "b"), secret("never", "c")
        assert await harness.ensure(pod_with_image("web"), wrong, right, never) == "used"
        assert harness.pulls() == 2

    run_agent(scenario)


def test_the_credentials_of_the_node_are_tried_last() -> None:
    async def scenario(harness: ImageHarness) -> None:
        assert await harness.ensure(pod_with_image("web"), secret("wrong")) == "used"
        assert harness.pulls() == 2
        assert await harness.ensure(pod_with_image("bare", policy="Always")) == "used"
        assert harness.pulls() == 3

    run_agent(scenario, config("right"))


def test_secrets_of_other_registries_are_not_sent() -> None:
    async def scenario(harness: ImageHarness) -> None:
        assert await harness.ensure(pod_with_image("web"), secret("right", key="other.test")) == "ErrImagePull"
        (call,) = [call for call in harness.fake.call_log if call.operation == Operation.PULL_IMAGE]
        assert call.given == ()

    run_agent(scenario)


def test_different_errors_of_all_attempts_are_reported_once_each() -> None:
    async def scenario(harness: ImageHarness) -> None:
        harness.fake.faults.fail(Operation.PULL_IMAGE, error=OddError)
        assert (
            await harness.ensure(pod_with_image("web"), secret("wrong", "a"), secret("bad", "b"), secret("no", "c"))
            == "ErrImagePull"
        )
        errors = f"[other error, cannot pull image {IMAGE}: unauthorized]"
        assert harness.events("Failed") == [f'Failed to pull image "{IMAGE}": {errors}']
        assert "right" not in str(harness.recorded)

    run_agent(scenario)


def test_the_same_error_of_all_attempts_is_reported_once() -> None:
    async def scenario(harness: ImageHarness) -> None:
        await harness.ensure(pod_with_image("web"), secret("wrong", "a"), secret("bad", "b"))
        assert harness.events("Failed") == [f'Failed to pull image "{IMAGE}": cannot pull image {IMAGE}: unauthorized']

    run_agent(scenario)


def test_the_same_credentials_from_two_secrets_share_a_pull() -> None:
    async def scenario(harness: ImageHarness) -> None:
        harness.fake.delays[Operation.PULL_IMAGE] = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.ensure(pod_with_image("one"), secret("right", "a")))
            group.create_task(harness.ensure(pod_with_image("two"), secret("right", "b")))
        assert harness.pulls() == 1
        assert await harness.ensure(pod_with_image("three"), secret("renewed", "b")) == "used", (
            "both secrets were recorded"
        )

    run_agent(scenario)


# Which pods may use a present image.


def test_an_image_pulled_with_a_secret_needs_credentials() -> None:
    async def scenario(harness: ImageHarness) -> None:
        assert await harness.ensure(pod_with_image("owner"), secret("right")) == "used"
        assert await harness.ensure(pod_with_image("owner2"), secret("right")) == "used"
        assert harness.pulls() == 1
        assert await harness.ensure(pod_with_image("other-tenant")) == "ErrImagePull"
        assert await harness.ensure(pod_with_image("intruder"), secret("wrong", "t")) == "ErrImagePull"
        assert await harness.ensure(pod_with_image("never", policy="Never")) == "ErrImageNeverPull"
        assert harness.pulls() == 3
        assert harness.events("ErrImageNeverPull") == [
            f'Container image "{IMAGE}" is not present with pull policy of Never'
        ]

    run_agent(scenario)


def test_a_pod_with_accepted_credentials_needs_no_other_pull() -> None:
    async def scenario(harness: ImageHarness) -> None:
        harness.fake.private_images[IMAGE] = frozenset({"right", "other"})
        await harness.ensure(pod_with_image("owner"), secret("right"))
        assert await harness.ensure(pod_with_image("friend"), secret("other", "t")) == "used"
        assert harness.pulls() == 2
        assert await harness.ensure(pod_with_image("friend2"), secret("other", "t")) == "used"
        assert harness.pulls() == 2
        text = f'Container image "{IMAGE}" already present on machine and can be accessed by the pod'
        assert harness.events("Pulled")[-1] == text

    run_agent(scenario)


def test_an_image_pulled_anonymously_is_available_to_all_pods() -> None:
    async def scenario(harness: ImageHarness) -> None:
        await harness.ensure(pod_with_image("one", image="reg.test/open:v1"))
        assert await harness.ensure(pod_with_image("two", image="reg.test/open:v1"), secret("any")) == "used"
        assert await harness.ensure(pod_with_image("three", image="reg.test/open:v1", policy="Never")) == "used"
        assert harness.pulls() == 1

    run_agent(scenario)


def test_an_image_pulled_with_node_credentials_is_available_to_all_pods() -> None:
    async def scenario(harness: ImageHarness) -> None:
        await harness.ensure(pod_with_image("one"))
        assert await harness.ensure(pod_with_image("two", policy="Never")) == "used"

    run_agent(scenario, config("right"))


@pytest.mark.parametrize(
    "policy, expected",
    [
        (VerificationPolicy.NEVER, "used"),
        (VerificationPolicy.NOT_PRELOADED, "used"),
        (VerificationPolicy.ALWAYS, "ErrImagePull"),
    ],
)
def test_the_policy_decides_about_preloaded_images(policy: VerificationPolicy, expected: str) -> None:
    async def scenario(node: Node) -> None:
        await node.fake.pull_image(IMAGE, [config("right")])
        async with running_image_harness(
            node.fake, node.clock, node.journal, verification=Verification(policy)
        ) as harness:
            assert await harness.ensure(pod_with_image("web")) == expected

    run_scenario(scenario)


def test_without_a_journal_all_pods_may_use_a_present_image() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock) as harness:
            await harness.ensure(pod_with_image("owner"), secret("right"))
            assert await harness.ensure(pod_with_image("other-tenant")) == "used"

    run_scenario(scenario)


# Restarts.


def test_access_survives_an_agent_restart() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            await harness.ensure(pod_with_image("owner"), secret("right"))
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            assert await harness.ensure(pod_with_image("owner"), secret("right")) == "used"
            assert harness.pulls() == 1
            assert await harness.ensure(pod_with_image("other-tenant")) == "ErrImagePull"

    run_scenario(scenario)


def test_an_image_whose_pull_was_interrupted_by_a_crash_needs_credentials() -> None:
    async def scenario(node: Node) -> None:
        node.fake.delays[Operation.PULL_IMAGE] = 5
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            pending = asyncio.create_task(harness.ensure(pod_with_image("owner"), secret("right")))
            await asyncio.sleep(1)
            pending.cancel()
        node.journal.crash()
        await node.fake.pull_image(IMAGE, [config("right")])  # the runtime completes the abandoned pull
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            assert await harness.ensure(pod_with_image("other-tenant")) == "ErrImagePull"
            assert await harness.ensure(pod_with_image("owner"), secret("right")) == "used"
            before = harness.pulls()
            assert await harness.ensure(pod_with_image("owner2"), secret("right")) == "used"
            assert harness.pulls() == before

    run_scenario(scenario)


def test_the_intent_stays_if_the_answer_of_a_pull_is_lost() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            await harness.ensure(pod_with_image("web"), secret("wrong"))
            assert "begun/" + IMAGE not in node.journal.load()
            node.fake.faults.fail(Operation.PULL_IMAGE, error=CallTimedOut)
            await harness.ensure(pod_with_image("owner"), secret("right"))
            assert "begun/" + IMAGE in node.journal.load()
            await node.fake.pull_image(IMAGE, [config("right")])
            assert await harness.ensure(pod_with_image("other-tenant")) == "ErrImagePull"

    run_scenario(scenario)


def test_the_intent_stays_if_one_of_several_answers_is_lost() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            wrong, right = secret("wrong", "a", key="reg.test/app"), secret("right", "b")
            node.fake.faults.add(
                Fault(operation=Operation.PULL_IMAGE, about=IMAGE, times=1, error=ImagePullFailed)
            )  # the first credentials are refused,
            node.fake.faults.fail(Operation.PULL_IMAGE, error=CallTimedOut)  # and the second ones hang
            assert await harness.ensure(pod_with_image("owner"), wrong, right) == "ErrImagePull"
            assert "begun/" + IMAGE in node.journal.load()

    run_scenario(scenario)


def test_a_full_disk_does_not_prevent_a_pull() -> None:
    async def scenario(node: Node) -> None:
        node.journal.disk_full = True
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            assert await harness.ensure(pod_with_image("owner"), secret("right")) == "used"
            assert await harness.ensure(pod_with_image("other-tenant")) == "ErrImagePull"

    run_scenario(scenario)


def test_with_unreadable_records_pods_need_credentials() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            await harness.ensure(pod_with_image("owner"), secret("right"))
        (key,) = [key for key in node.journal.load() if key.startswith("pulled/")]
        node.journal.put(key, b"{")
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            assert await harness.ensure(pod_with_image("other-tenant")) == "ErrImagePull"
            assert await harness.ensure(pod_with_image("owner"), secret("right")) == "used"

    run_scenario(scenario)


def test_no_password_is_stored() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            await harness.ensure(pod_with_image("owner"), secret("right"))

    node = run_scenario(scenario)
    assert node.journal.load()
    assert b"right" not in b"".join(node.journal.load().values())


def test_records_of_removed_images_are_pruned_unless_pulled_since_the_list() -> None:
    async def scenario(node: Node) -> None:
        async with running_image_harness(node.fake, node.clock, node.journal) as harness:
            assert harness.pull_manager is not None
            await harness.ensure(pod_with_image("one", image="reg.test/old:v1"))
            await asyncio.sleep(5)
            listed_at = node.clock.monotonic()
            await asyncio.sleep(1)
            await harness.ensure(pod_with_image("two", image="reg.test/new:v1"))
            harness.pull_manager.prune_unknown_records((), listed_at)
            new = await node.fake.image("reg.test/new:v1")
            assert new is not None
            assert [key for key in node.journal.load() if key.startswith("pulled/")] == [f"pulled/{new.id}"]

    run_scenario(scenario)
