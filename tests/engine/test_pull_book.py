"""The book of pulls alone: what is noted, in which order, what a new agent reads of it, and what is forgotten."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
import pytest

from podkeeper.engine.image_access import PullBook
from podkeeper.engine.notebook import Notebook
from podkeeper.rules.image_access import Access, Policy, PulledImage, Verification, access_by
from podkeeper.rules.keyring import Credentials, SecretName
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in

IMAGE, NAME = "reg.test/app:v1", "reg.test/app"
MINE = Credentials(username="me", password="mine", source=SecretName("team", "s", "u"))
RENEWED = Credentials(username="me", password="renewed", source=SecretName("team", "s", "u"))
THEIRS = Credentials(username="them", password="theirs", source=SecretName("other", "s", "v"))


class Notes:
    """Notes in a dictionary."""

    def __init__(self, **notes: bytes) -> None:
        self.notes = notes
        self.calls: list[tuple[str, str | None]] = []
        self.old = dict(notes)
        self.when_settled: Callable[[], object] = lambda: None

    def old_keys(self) -> Iterable[str]:
        return self.old.keys()

    def take(self, key: str) -> bytes | None:
        return self.old.pop(key, None)

    def write(self, key: str, note: bytes) -> None:
        self.calls.append(("write", key))
        self.notes[key] = note

    def drop(self, key: str) -> None:
        self.calls.append(("drop", key))
        self.notes.pop(key, None)

    async def settle(self, key: str | None = None) -> None:
        self.when_settled()
        self.calls.append(("settle", key))


class Life:
    """One life of an agent's book."""

    def __init__(self, begun: Notes | None = None, pulled: Notes | None = None, policy: Policy | None = None) -> None:
        self.clock = VirtualClock()
        self.begun, self.pulled = begun or Notes(), pulled or Notes()
        verification = Verification(policy or Policy.NOT_PRELOADED)
        self.book = PullBook(
            begun=stand_in(Notebook, self.begun),
            pulled=stand_in(Notebook, self.pulled),
            clock=self.clock,
            verification=verification,
        )

    def must_pull(self, *offered: Credentials, reference: str = IMAGE) -> bool:
        return self.book.must_pull(reference, "i1", offered)

    def record(self) -> PulledImage:
        """What is noted of the image."""
        return msgspec.json.decode(self.pulled.notes["i1"], type=PulledImage)


def live(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(story())


# Pulls that begin and end.


def test_a_pull_is_noted_once_before_it_begins() -> None:
    async def story() -> None:
        it = Life()
        await it.book.begin(IMAGE)
        assert it.begun.calls == [("write", IMAGE), ("settle", IMAGE)]
        await it.book.begin(IMAGE)
        assert it.begun.calls[2:] == [("settle", IMAGE)]
        assert it.begun.notes == {IMAGE: b""}

    live(story)


def test_a_pull_counts_as_begun_while_its_note_is_not_durable_yet() -> None:
    async def story() -> None:
        it = Life()
        seen: list[bool] = []

        assert not it.must_pull()  # the image was there before us
        it.begun.when_settled = lambda: seen.append(it.must_pull())
        await it.book.begin(IMAGE)
        assert seen == [True]

    live(story)


@pytest.mark.parametrize(
    "ends, noted",
    [
        pytest.param([True, True], False, id="both failed"),
        pytest.param([True], True, id="one goes on"),
        pytest.param([False, False], True, id="no answer is known"),
        pytest.param([False, True], False, id="the last answer is known"),
        pytest.param([True, False], True, id="the last answer is not known"),
    ],
)
def test_a_note_stays_while_a_pull_may_yet_come_true(ends: list[bool], noted: bool) -> None:
    async def story() -> None:
        it = Life()
        for _ in range(2):
            await it.book.begin(IMAGE)
        for surely in ends:
            it.book.ended(IMAGE, surely=surely)
        assert (IMAGE in it.begun.notes, it.must_pull()) == (noted, noted)
        assert it.begun.calls.count(("drop", IMAGE)) == (not noted)

    live(story)


def test_a_pull_that_begins_after_another_failed_is_noted_again() -> None:
    async def story() -> None:
        it = Life()
        for _ in range(2):
            await it.book.begin(IMAGE)
            it.book.ended(IMAGE, surely=True)
        assert [call for call, _ in it.begun.calls] == ["write", "settle", "drop"] * 2

    live(story)


def test_a_note_of_a_former_life_counts_until_a_pull_ends() -> None:
    async def story() -> None:
        it = Life(begun=Notes(**{IMAGE: b""}))
        assert it.must_pull()
        await it.book.begin(IMAGE)
        assert it.begun.calls == [("settle", IMAGE)]
        it.book.ended(IMAGE, surely=True)
        assert it.begun.notes == {}
        assert not it.must_pull()

    live(story)


# Who may use an image.


def test_what_a_pull_shows_is_noted() -> None:
    async def story() -> None:
        it = Life()
        it.book.pulled(IMAGE, "i1", MINE)
        assert it.record() == PulledImage("i1", {NAME: access_by(MINE)})
        assert (it.must_pull(MINE), it.must_pull(THEIRS), it.must_pull()) == (False, True, True)
        assert it.must_pull(MINE, reference="reg.test/other:v1")
        assert it.pulled.calls == [("write", "i1")]
        it.book.pulled(IMAGE, "i1", MINE)
        assert it.pulled.calls == [("write", "i1")]  # nothing new
        it.book.pulled(IMAGE, "i1", THEIRS)
        assert not it.must_pull(THEIRS)
        it.book.pulled(IMAGE, "i1", None)
        assert it.record() == PulledImage("i1", {NAME: Access(everybody=True)})
        assert not it.must_pull()

    live(story)


def test_a_secret_that_was_renewed_is_noted() -> None:
    async def story() -> None:
        it = Life()
        it.book.pulled(IMAGE, "i1", MINE)
        assert not it.must_pull(RENEWED)
        assert it.record() == PulledImage("i1", {NAME: access_by(RENEWED)})
        assert it.pulled.calls == [("write", "i1")] * 2

    live(story)


def test_a_policy_may_need_credentials_for_all_images() -> None:
    async def story() -> None:
        assert Life(policy=Policy.ALWAYS).must_pull(MINE)
        it = Life(policy=Policy.NEVER)
        await it.book.begin(IMAGE)
        assert not it.must_pull()

    live(story)


@pytest.mark.parametrize(
    "unreadable",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"id": "\xff"}', id="not UTF-8"),
        pytest.param(b'{"x": ' + b"[" * 2000, id="too deep"),
    ],
)
def test_a_new_agent_reads_all_notes(unreadable: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        record = msgspec.json.encode(PulledImage("i1", {NAME: access_by(MINE)}))
        it = Life(pulled=Notes(i1=record, i2=unreadable))
        assert (it.must_pull(MINE), it.must_pull(THEIRS)) == (False, True)
        assert it.book.must_pull(IMAGE, "i2", [MINE])  # whose note cannot be read
        assert not it.book.must_pull(IMAGE, "i3", [])
        assert [line.levelno for line in caplog.records] == [logging.WARNING]

    live(story)


# What is forgotten.


@pytest.mark.parametrize(
    "listed, listed_at, kept",
    [
        pytest.param(["i1"], 9.0, True, id="listed"),
        pytest.param([], 5.5, False, id="gone"),
        pytest.param([], 5.0, True, id="pulled when the list was begun"),
        pytest.param([], 4.5, True, id="pulled after the list was begun"),
    ],
)
def test_an_image_that_is_gone_is_forgotten(listed: list[str], listed_at: float, kept: bool) -> None:
    async def story() -> None:
        it = Life()
        await asyncio.sleep(5)
        it.book.pulled(IMAGE, "i1", MINE)
        it.book.keep_only(listed, listed_at)
        assert (("i1" in it.pulled.notes), it.must_pull(THEIRS)) == (kept, kept)
        assert it.pulled.calls[1:] == ([] if kept else [("drop", "i1")])

    live(story)


def test_an_image_that_was_shown_again_since_the_list_is_not_forgotten() -> None:
    async def story() -> None:
        it = Life()
        it.book.pulled(IMAGE, "i1", MINE)
        await asyncio.sleep(5)
        it.book.pulled(IMAGE, "i1", MINE)  # nothing new, but it is there
        it.book.keep_only([], 3.0)
        assert "i1" in it.pulled.notes

    live(story)


def test_an_image_of_a_former_life_that_is_gone_is_forgotten() -> None:
    async def story() -> None:
        it = Life(pulled=Notes(i1=msgspec.json.encode(PulledImage("i1")), i2=b"{}"))
        it.book.keep_only(["i2"], 0.0)
        assert set(it.pulled.notes) == {"i2"}

    live(story)
