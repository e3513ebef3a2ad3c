"""`ImagePullManager` alone: what is recorded, what a new agent reads, and what is deleted."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
import pytest

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.rules.images.keyring import Credentials, SecretName
from podkeeper.rules.images.pull_access import Access, PulledImage, Verification, VerificationPolicy, access_by
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in

IMAGE, NAME = "reg.test/app:v1", "reg.test/app"
MINE = Credentials(username="me", password="mine", source=SecretName("team", "s", "u"))
RENEWED = Credentials(username="me", password="renewed", source=SecretName("team", "s", "u"))
THEIRS = Credentials(username="them", password="theirs", source=SecretName("other", "s", "v"))


class FakeCheckpoints:
    """Checkpoints in a dictionary."""

    def __init__(self, **stored: bytes) -> None:
        self.stored = stored
        self.calls: list[tuple[str, str | None]] = []
        self.old = dict(stored)
        self.when_settled: Callable[[], object] = lambda: None

    def old_keys(self) -> Iterable[str]:
        return self.old.keys()

    def take(self, key: str) -> bytes | None:
        return self.old.pop(key, None)

    def write(self, key: str, value: bytes) -> None:
        self.calls.append(("write", key))
        self.stored[key] = value

    def drop(self, key: str) -> None:
        self.calls.append(("drop", key))
        self.stored.pop(key, None)

    async def settle(self, key: str | None = None) -> None:
        self.when_settled()
        self.calls.append(("settle", key))


class Harness:
    """An image pull manager with fake checkpoints."""

    def __init__(
        self,
        intents: FakeCheckpoints | None = None,
        pulled: FakeCheckpoints | None = None,
        policy: VerificationPolicy | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.intents, self.pulled = intents or FakeCheckpoints(), pulled or FakeCheckpoints()
        verification = Verification(policy or VerificationPolicy.NOT_PRELOADED)
        self.manager = ImagePullManager(
            intents=stand_in(Checkpoints, self.intents),
            pulled=stand_in(Checkpoints, self.pulled),
            clock=self.clock,
            verification=verification,
        )

    def must_pull(self, *offered: Credentials, reference: str = IMAGE) -> bool:
        return self.manager.must_attempt_image_pull(reference, "i1", offered)

    def record(self) -> PulledImage:
        """Return the record of the image."""
        return msgspec.json.decode(self.pulled.stored["i1"], type=PulledImage)


def run_scenario(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(scenario())


# Pulls that begin and end.


def test_an_intent_is_recorded_once_before_the_pull() -> None:
    async def scenario() -> None:
        harness = Harness()
        await harness.manager.record_pull_intent(IMAGE)
        assert harness.intents.calls == [("write", IMAGE), ("settle", IMAGE)]
        await harness.manager.record_pull_intent(IMAGE)
        assert harness.intents.calls[2:] == [("settle", IMAGE)]
        assert harness.intents.stored == {IMAGE: b""}

    run_scenario(scenario)


def test_an_intent_counts_before_it_is_durable() -> None:
    async def scenario() -> None:
        harness = Harness()
        seen: list[bool] = []

        assert not harness.must_pull()  # the image is preloaded
        harness.intents.when_settled = lambda: seen.append(harness.must_pull())
        await harness.manager.record_pull_intent(IMAGE)
        assert seen == [True]

    run_scenario(scenario)


@pytest.mark.parametrize(
    "ends, kept",
    [
        pytest.param([True, True], False, id="both failed"),
        pytest.param([True], True, id="one is in progress"),
        pytest.param([False, False], True, id="no result is certain"),
        pytest.param([False, True], False, id="the last result is certain"),
        pytest.param([True, False], True, id="the last result is not certain"),
    ],
)
def test_an_intent_stays_while_a_pull_may_still_take_effect(ends: list[bool], kept: bool) -> None:
    async def scenario() -> None:
        harness = Harness()
        for _ in range(2):
            await harness.manager.record_pull_intent(IMAGE)
        for certain in ends:
            harness.manager.record_pull_ended(IMAGE, certain=certain)
        assert (IMAGE in harness.intents.stored, harness.must_pull()) == (kept, kept)
        assert harness.intents.calls.count(("drop", IMAGE)) == (not kept)

    run_scenario(scenario)


def test_an_intent_is_recorded_again_after_a_failed_pull() -> None:
    async def scenario() -> None:
        harness = Harness()
        for _ in range(2):
            await harness.manager.record_pull_intent(IMAGE)
            harness.manager.record_pull_ended(IMAGE, certain=True)
        assert [call for call, _ in harness.intents.calls] == ["write", "settle", "drop"] * 2

    run_scenario(scenario)


def test_an_intent_of_an_earlier_agent_counts_until_a_pull_ends() -> None:
    async def scenario() -> None:
        harness = Harness(intents=FakeCheckpoints(**{IMAGE: b""}))
        assert harness.must_pull()
        await harness.manager.record_pull_intent(IMAGE)
        assert harness.intents.calls == [("settle", IMAGE)]
        harness.manager.record_pull_ended(IMAGE, certain=True)
        assert harness.intents.stored == {}
        assert not harness.must_pull()

    run_scenario(scenario)


# Access.


def test_a_pull_records_its_credentials() -> None:
    async def scenario() -> None:
        harness = Harness()
        harness.manager.record_image_pulled(IMAGE, "i1", MINE)
        assert harness.record() == PulledImage("i1", {NAME: access_by(MINE)})
        assert (harness.must_pull(MINE), harness.must_pull(THEIRS), harness.must_pull()) == (False, True, True)
        assert harness.must_pull(MINE, reference="reg.test/other:v1")
        assert harness.pulled.calls == [("write", "i1")]
        harness.manager.record_image_pulled(IMAGE, "i1", MINE)
        assert harness.pulled.calls == [("write", "i1")]  # no change
        harness.manager.record_image_pulled(IMAGE, "i1", THEIRS)
        assert not harness.must_pull(THEIRS)
        harness.manager.record_image_pulled(IMAGE, "i1", None)
        assert harness.record() == PulledImage("i1", {NAME: Access(any_pod=True)})
        assert not harness.must_pull()

    run_scenario(scenario)


def test_a_renewed_secret_is_recorded() -> None:
    async def scenario() -> None:
        harness = Harness()
        harness.manager.record_image_pulled(IMAGE, "i1", MINE)
        assert not harness.must_pull(RENEWED)
        assert harness.record() == PulledImage("i1", {NAME: access_by(RENEWED)})
        assert harness.pulled.calls == [("write", "i1")] * 2

    run_scenario(scenario)


def test_the_policies_always_and_never_are_applied() -> None:
    async def scenario() -> None:
        assert Harness(policy=VerificationPolicy.ALWAYS).must_pull(MINE)
        harness = Harness(policy=VerificationPolicy.NEVER)
        await harness.manager.record_pull_intent(IMAGE)
        assert not harness.must_pull()

    run_scenario(scenario)


@pytest.mark.parametrize(
    "unreadable",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"id": "\xff"}', id="not UTF-8"),
        pytest.param(b'{"x": ' + b"[" * 2000, id="too deep"),
    ],
)
def test_a_new_agent_reads_all_records(unreadable: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        record = msgspec.json.encode(PulledImage("i1", {NAME: access_by(MINE)}))
        harness = Harness(pulled=FakeCheckpoints(i1=record, i2=unreadable))
        assert (harness.must_pull(MINE), harness.must_pull(THEIRS)) == (False, True)
        assert harness.manager.must_attempt_image_pull(IMAGE, "i2", [MINE])  # its record is unreadable
        assert not harness.manager.must_attempt_image_pull(IMAGE, "i3", [])
        assert [line.levelno for line in caplog.records] == [logging.WARNING]

    run_scenario(scenario)


# Deletion of records.


@pytest.mark.parametrize(
    "listed, listed_at, kept",
    [
        pytest.param(["i1"], 9.0, True, id="listed"),
        pytest.param([], 5.5, False, id="gone"),
        pytest.param([], 5.0, True, id="pulled when the list was begun"),
        pytest.param([], 4.5, True, id="pulled after the list was begun"),
    ],
)
def test_the_record_of_a_removed_image_is_pruned(listed: list[str], listed_at: float, kept: bool) -> None:
    async def scenario() -> None:
        harness = Harness()
        await asyncio.sleep(5)
        harness.manager.record_image_pulled(IMAGE, "i1", MINE)
        harness.manager.prune_unknown_records(listed, listed_at)
        assert (("i1" in harness.pulled.stored), harness.must_pull(THEIRS)) == (kept, kept)
        assert harness.pulled.calls[1:] == ([] if kept else [("drop", "i1")])

    run_scenario(scenario)


def test_an_image_pulled_again_since_the_list_is_not_pruned() -> None:
    async def scenario() -> None:
        harness = Harness()
        harness.manager.record_image_pulled(IMAGE, "i1", MINE)
        await asyncio.sleep(5)
        harness.manager.record_image_pulled(IMAGE, "i1", MINE)  # no change, but the image is present
        harness.manager.prune_unknown_records([], 3.0)
        assert "i1" in harness.pulled.stored

    run_scenario(scenario)


def test_a_record_of_an_earlier_agent_is_pruned() -> None:
    async def scenario() -> None:
        harness = Harness(pulled=FakeCheckpoints(i1=msgspec.json.encode(PulledImage("i1")), i2=b"{}"))
        harness.manager.prune_unknown_records(["i2"], 0.0)
        assert set(harness.pulled.stored) == {"i2"}

    run_scenario(scenario)
