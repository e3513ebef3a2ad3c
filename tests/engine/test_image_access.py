"""Private images: which credentials are tried, and who may use what others have pulled."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import CallTimedOut, ImagePullFailed
from podkeeper.rules.image_access import Policy, Verification
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.runtimes.fake.faults import Fault
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.image_house import IMAGE, ImageHouse, config, image_house, secret, wants


class OddError(ImagePullFailed):
    """Another thing that a registry may say."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot say")


class Node:
    """What survives an agent."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.fake = FakeRuntime(self.clock)
        self.fake.private_images[IMAGE] = frozenset({"right"})
        self.journal = FakeJournal()


def play(scenario: Callable[[Node], Awaitable[None]]) -> Node:
    async def played() -> Node:
        node = Node()
        await scenario(node)
        return node

    return simulate(played())[0]


def in_one_life(scenario: Callable[[ImageHouse], Awaitable[None]], *node_configs: str) -> None:
    async def life(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal, node=node_configs) as home:
            await scenario(home)

    play(life)


# Which credentials are tried.


def test_credentials_are_tried_one_by_one_until_one_opens_the_image() -> None:
    async def scenario(home: ImageHouse) -> None:
        wrong, right, never = secret("wrong", "a", key="reg.test/app"), secret("right", "b"), secret("never", "c")
        assert await home.ensure(wants("web"), wrong, right, never) == "used"
        assert home.pulls() == 2

    in_one_life(scenario)


def test_the_nodes_own_credentials_come_last() -> None:
    async def scenario(home: ImageHouse) -> None:
        assert await home.ensure(wants("web"), secret("wrong")) == "used"
        assert home.pulls() == 2
        assert await home.ensure(wants("bare", policy="Always")) == "used"
        assert home.pulls() == 3

    in_one_life(scenario, config("right"))


def test_secrets_of_other_registries_are_not_shown_to_this_one() -> None:
    async def scenario(home: ImageHouse) -> None:
        assert await home.ensure(wants("web"), secret("right", key="other.test")) == "ErrImagePull"
        (call,) = [call for call in home.fake.ledger if call.operation == Operation.PULL_IMAGE]
        assert call.given == ()

    in_one_life(scenario)


def test_what_all_tries_said_is_told_once_each() -> None:
    async def scenario(home: ImageHouse) -> None:
        home.fake.faults.fail(Operation.PULL_IMAGE, error=OddError)
        assert (
            await home.ensure(wants("web"), secret("wrong", "a"), secret("bad", "b"), secret("no", "c"))
            == "ErrImagePull"
        )
        words = f"[cannot say, cannot pull image {IMAGE}: unauthorized]"
        assert home.events("Failed") == [f'Failed to pull image "{IMAGE}": {words}']
        assert "right" not in str(home.told)

    in_one_life(scenario)


def test_one_thing_that_all_tries_said_is_told_as_it_was_said() -> None:
    async def scenario(home: ImageHouse) -> None:
        await home.ensure(wants("web"), secret("wrong", "a"), secret("bad", "b"))
        assert home.events("Failed") == [f'Failed to pull image "{IMAGE}": cannot pull image {IMAGE}: unauthorized']

    in_one_life(scenario)


def test_the_same_credentials_out_of_two_secrets_share_a_pull() -> None:
    async def scenario(home: ImageHouse) -> None:
        home.fake.delays[Operation.PULL_IMAGE] = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(home.ensure(wants("one"), secret("right", "a")))
            group.create_task(home.ensure(wants("two"), secret("right", "b")))
        assert home.pulls() == 1
        assert await home.ensure(wants("three"), secret("renewed", "b")) == "used", "both secrets were noted"

    in_one_life(scenario)


# Who may use what is there.


def test_what_one_pulled_with_a_secret_is_not_everybodys() -> None:
    async def scenario(home: ImageHouse) -> None:
        assert await home.ensure(wants("owner"), secret("right")) == "used"
        assert await home.ensure(wants("owner2"), secret("right")) == "used"
        assert home.pulls() == 1
        assert await home.ensure(wants("stranger")) == "ErrImagePull"
        assert await home.ensure(wants("thief"), secret("wrong", "t")) == "ErrImagePull"
        assert await home.ensure(wants("never", policy="Never")) == "ErrImageNeverPull"
        assert home.pulls() == 3
        assert home.events("ErrImageNeverPull") == [
            f'Container image "{IMAGE}" is not present with pull policy of Never'
        ]

    in_one_life(scenario)


def test_who_shows_that_he_may_is_let_in_from_then_on() -> None:
    async def scenario(home: ImageHouse) -> None:
        home.fake.private_images[IMAGE] = frozenset({"right", "other"})
        await home.ensure(wants("owner"), secret("right"))
        assert await home.ensure(wants("friend"), secret("other", "t")) == "used"
        assert home.pulls() == 2
        assert await home.ensure(wants("friend2"), secret("other", "t")) == "used"
        assert home.pulls() == 2
        text = f'Container image "{IMAGE}" already present on machine and can be accessed by the pod'
        assert home.events("Pulled")[-1] == text

    in_one_life(scenario)


def test_what_was_pulled_without_a_secret_is_everybodys() -> None:
    async def scenario(home: ImageHouse) -> None:
        await home.ensure(wants("one", "reg.test/open:v1"))
        assert await home.ensure(wants("two", "reg.test/open:v1"), secret("any")) == "used"
        assert await home.ensure(wants("three", "reg.test/open:v1", policy="Never")) == "used"
        assert home.pulls() == 1

    in_one_life(scenario)


def test_what_the_nodes_own_credentials_opened_is_everybodys() -> None:
    async def scenario(home: ImageHouse) -> None:
        await home.ensure(wants("one"))
        assert await home.ensure(wants("two", policy="Never")) == "used"

    in_one_life(scenario, config("right"))


@pytest.mark.parametrize(
    "policy, expected",
    [(Policy.NEVER, "used"), (Policy.NOT_PRELOADED, "used"), (Policy.ALWAYS, "ErrImagePull")],
)
def test_what_was_there_before_us_is_everybodys_unless_the_policy_says_otherwise(policy: Policy, expected: str) -> None:
    async def scenario(node: Node) -> None:
        await node.fake.pull_image(IMAGE, [config("right")])
        async with image_house(node.fake, node.clock, node.journal, verification=Verification(policy)) as home:
            assert await home.ensure(wants("web")) == expected

    play(scenario)


def test_without_a_book_everybody_may_use_what_is_there() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock) as home:
            await home.ensure(wants("owner"), secret("right"))
            assert await home.ensure(wants("stranger")) == "used"

    play(scenario)


# Over restarts.


def test_a_restarted_agent_knows_who_may() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal) as home:
            await home.ensure(wants("owner"), secret("right"))
        async with image_house(node.fake, node.clock, node.journal) as home:
            assert await home.ensure(wants("owner"), secret("right")) == "used"
            assert home.pulls() == 1
            assert await home.ensure(wants("stranger")) == "ErrImagePull"

    play(scenario)


def test_a_crash_in_the_middle_of_a_pull_does_not_make_the_image_everybodys() -> None:
    async def scenario(node: Node) -> None:
        node.fake.delays[Operation.PULL_IMAGE] = 5
        async with image_house(node.fake, node.clock, node.journal) as home:
            asking = asyncio.create_task(home.ensure(wants("owner"), secret("right")))
            await asyncio.sleep(1)
            asking.cancel()
        node.journal.crash()
        await node.fake.pull_image(IMAGE, [config("right")])  # the runtime completes what nobody waits for
        async with image_house(node.fake, node.clock, node.journal) as home:
            assert await home.ensure(wants("stranger")) == "ErrImagePull"
            assert await home.ensure(wants("owner"), secret("right")) == "used"
            before = home.pulls()
            assert await home.ensure(wants("owner2"), secret("right")) == "used"
            assert home.pulls() == before

    play(scenario)


def test_a_pull_whose_answer_was_lost_stays_noted_and_one_that_failed_does_not() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal) as home:
            await home.ensure(wants("web"), secret("wrong"))
            assert "begun/" + IMAGE not in node.journal.load()
            node.fake.faults.fail(Operation.PULL_IMAGE, error=CallTimedOut)
            await home.ensure(wants("owner"), secret("right"))
            assert "begun/" + IMAGE in node.journal.load()
            await node.fake.pull_image(IMAGE, [config("right")])
            assert await home.ensure(wants("stranger")) == "ErrImagePull"

    play(scenario)


def test_a_lost_answer_to_one_of_several_credentials_stays_noted_though_others_were_refused() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal) as home:
            wrong, right = secret("wrong", "a", key="reg.test/app"), secret("right", "b")
            node.fake.faults.add(
                Fault(operation=Operation.PULL_IMAGE, about=IMAGE, times=1, error=ImagePullFailed)
            )  # the first credentials are refused,
            node.fake.faults.fail(Operation.PULL_IMAGE, error=CallTimedOut)  # and the second ones hang
            assert await home.ensure(wants("owner"), wrong, right) == "ErrImagePull"
            assert "begun/" + IMAGE in node.journal.load()

    play(scenario)


def test_a_disk_that_refuses_keeps_nobody_from_pulling() -> None:
    async def scenario(node: Node) -> None:
        node.journal.disk_full = True
        async with image_house(node.fake, node.clock, node.journal) as home:
            assert await home.ensure(wants("owner"), secret("right")) == "used"
            assert await home.ensure(wants("stranger")) == "ErrImagePull"

    play(scenario)


def test_notes_that_cannot_be_read_let_nobody_in() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal) as home:
            await home.ensure(wants("owner"), secret("right"))
        (key,) = [key for key in node.journal.load() if key.startswith("pulled/")]
        node.journal.put(key, b"{")
        async with image_house(node.fake, node.clock, node.journal) as home:
            assert await home.ensure(wants("stranger")) == "ErrImagePull"
            assert await home.ensure(wants("owner"), secret("right")) == "used"

    play(scenario)


def test_no_password_is_ever_written_down() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal) as home:
            await home.ensure(wants("owner"), secret("right"))

    node = play(scenario)
    assert node.journal.load()
    assert b"right" not in b"".join(node.journal.load().values())


def test_images_that_are_gone_are_forgotten_but_not_one_that_was_pulled_since() -> None:
    async def scenario(node: Node) -> None:
        async with image_house(node.fake, node.clock, node.journal) as home:
            assert home.book is not None
            await home.ensure(wants("one", "reg.test/old:v1"))
            await asyncio.sleep(5)
            listed_at = node.clock.monotonic()
            await asyncio.sleep(1)
            await home.ensure(wants("two", "reg.test/new:v1"))
            home.book.keep_only((), listed_at)
            new = await node.fake.image("reg.test/new:v1")
            assert new is not None
            assert [key for key in node.journal.load() if key.startswith("pulled/")] == [f"pulled/{new.id}"]

    play(scenario)
