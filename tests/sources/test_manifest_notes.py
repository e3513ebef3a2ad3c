"""Notes of manifests: what survives a restart of the agent, and what must not."""

import asyncio
import base64
import os
from pathlib import Path

import pytest

from podkeeper.engine.notebook import Notebook
from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.ports.journal import Journal
from podkeeper.rules.static import FromFile
from podkeeper.sources.contents import Contents, Reader
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import simulate
from tests.sources.static_listener import config_map_text, pod_text

PLACE = "/manifests/web.yaml"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: password\nstringData:\n  word: hush-hush\n"
SECRET_BYTES = base64.b64encode(b"hush-hush")
ALL = "---\n".join([pod_text("web", more="  - {name: beside, image: x}\n"), config_map_text("settings", "one"), SECRET])


def read(text: str, place: str = PLACE) -> Contents:
    contents = Reader("n1", has_store=True).read(text.encode(), FromFile(place), place)
    assert contents.whole, contents.problems
    return contents


def notes(journal: Journal, node_name: str = "n1", *, keep_secrets: bool = True) -> ManifestNotes:
    return ManifestNotes(Notebook(journal, "manifest/file/"), node_name, keep_secrets=keep_secrets)


@pytest.mark.parametrize("place", [PLACE, os.fsdecode(b"/manifests/\xff.yaml"), "http://host/manifests?x=1"])
def test_what_is_recalled_equals_what_the_source_made_of_the_manifest(place: str) -> None:
    journal, items = FakeJournal(), read(ALL, place).items
    notes(journal).keep({place: items})
    recalled = notes(journal).recall()
    assert list(recalled) == [place]
    assert [(item.key, item.value) for item in recalled[place]] == [(item.key, item.value) for item in items]


def test_a_problem_with_a_recalled_object_names_its_file_and_the_first_line() -> None:
    journal = FakeJournal()
    notes(journal).keep({PLACE: read(ALL).items})
    problems = [item.problem("cannot be used", "metadata.name") for item in notes(journal).recall()[PLACE]]
    assert problems == [Problem("cannot be used", "metadata.name", PLACE, 1)] * 3


def test_places_are_recalled_in_their_order_and_each_change_is_synced() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        kept = notes(journal)
        running = asyncio.ensure_future(kept.run())
        kept.keep({place: read(pod_text(place[-1]), place).items for place in ("/c", "/a", "/b")})
        await asyncio.sleep(1)
        assert list(notes(journal).recall()) == ["/a", "/b", "/c"]
        running.cancel()
        await asyncio.wait([running])

    simulate(scenario())


def test_pods_of_one_place_are_recalled_in_the_order_in_which_they_were_written() -> None:
    journal, items = FakeJournal(), read("---\n".join(map(pod_text, ["c", "a", "b"]))).items
    notes(journal).keep({PLACE: items})
    assert [item.key.name for item in notes(journal).recall()[PLACE]] == ["c", "a", "b"]


def test_the_content_of_secrets_is_not_written_unless_it_may_be() -> None:
    journal = FakeJournal()
    notes(journal, keep_secrets=False).keep({PLACE: read(ALL).items})
    assert not any(b"aHVzaC1odXNo" in note or b"hush-hush" in note for note in journal.load().values())
    assert [item.key.kind for item in notes(journal).recall()[PLACE]] == ["Pod", "ConfigMap"]


def test_when_permission_is_withdrawn_stored_secrets_are_neither_used_nor_kept() -> None:
    journal = FakeJournal()
    notes(journal).keep({PLACE: read(ALL).items})
    recalled = notes(journal, keep_secrets=False).recall()
    assert [item.key.kind for item in recalled[PLACE]] == ["Pod", "ConfigMap"]
    assert not any(b"hush-hush" in note for note in journal.load().values())
    assert [item.key.kind for item in notes(journal).recall()[PLACE]] == ["Pod", "ConfigMap"]


def test_a_note_is_dropped_with_its_place() -> None:
    journal, items = FakeJournal(), read(ALL).items
    kept = notes(journal)
    kept.keep({PLACE: items, "/manifests/other.yaml": read(pod_text("other")).items})
    kept.keep({PLACE: items})
    assert len(journal.load()) == 1
    kept.keep({PLACE: ()})
    assert journal.load() == {}


def test_a_note_that_was_recalled_is_dropped_when_its_place_does_not_come_back() -> None:
    journal = FakeJournal()
    notes(journal).keep({PLACE: read(ALL).items})
    second = notes(journal)
    second.recall()
    second.keep({})
    assert journal.load() == {}


def test_what_has_not_changed_is_not_written_again() -> None:
    journal, items = FakeJournal(), read(ALL).items
    notes(journal).keep({PLACE: items})
    written = journal.unsynced_writes
    second = notes(journal)
    second.recall()
    second.keep({PLACE: items})
    assert journal.unsynced_writes == written


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b'{"node": "n1"}',
        b"\xff",
        b'{"node": "\xff"}',
        b'{"x": ' + b"[" * 2000,
        b'{"node": "n1", "place": "L3g=", "pods": [1]}',
        b'{"node": "n1", "place": "L3g=", "pods": [{}]}',
        b'{"node": "n1", "place": "L3g=", "pods": [{"metadata": {"name": "web"}}]}',
        b'{"node": "n1", "place": "L3g=", "pods": [{"metadata": {"uid": "uid-web"}}]}',
    ],
)
def test_a_note_that_cannot_be_decoded_is_dropped_and_the_others_are_not(note: bytes) -> None:
    journal = FakeJournal()
    notes(journal).keep({PLACE: read(ALL).items})
    journal.put("manifest/file/broken", note)
    assert list(notes(journal).recall()) == [PLACE]
    assert "manifest/file/broken" not in journal.load()


def test_notes_of_another_node_name_are_dropped() -> None:
    journal = FakeJournal()
    notes(journal).keep({PLACE: read(ALL).items})
    assert notes(journal, "n2").recall() == {}
    assert journal.load() == {}


def test_notes_become_durable_and_a_disk_that_refuses_holds_nothing_up() -> None:
    async def scenario() -> tuple[bool, bool]:
        journal = FakeJournal()
        kept = notes(journal)
        running = asyncio.create_task(kept.run())
        journal.disk_full = True
        kept.keep({PLACE: read(pod_text("old")).items})
        await asyncio.sleep(5)
        refused = journal.unsynced_writes > 0
        journal.disk_full = False
        kept.keep({PLACE: read(pod_text("web")).items})
        await asyncio.sleep(5)
        running.cancel()
        journal.crash()
        (item,) = notes(journal).recall()[PLACE]
        assert isinstance(item.value, Pod)
        return refused, item.value.metadata.name == "web-n1"

    assert simulate(scenario())[0] == (True, True)


@pytest.mark.parametrize(
    "end", ["permission is withdrawn", "its place is gone", "it changes", "another node name", "it cannot be decoded"]
)
def test_a_secret_that_is_no_longer_stored_leaves_the_disk(end: str, tmp_path: Path) -> None:
    path, items = tmp_path / "journal", read(ALL).items

    async def former() -> None:
        journal = FileJournal.open(path)
        notes(journal).keep({PLACE: items})
        if end == "it cannot be decoded":
            ((key, note),) = journal.load().items()
            journal.put(key, note[:-1])
        await journal.close()

    async def present() -> None:
        journal = FileJournal.open(path)
        node_name = "n2" if end == "another node name" else "n1"
        kept = notes(journal, node_name, keep_secrets=end != "permission is withdrawn")
        running = asyncio.create_task(kept.run())
        kept.recall()
        if end == "its place is gone":
            kept.keep({})
        if end == "it changes":
            kept.keep({PLACE: read(ALL.replace("hush-hush", "other")).items})
        await asyncio.sleep(0)  # `run` begins to sync
        await journal.close()
        running.cancel()

    asyncio.run(former())
    assert SECRET_BYTES in path.read_bytes()
    asyncio.run(present())
    assert SECRET_BYTES not in path.read_bytes()
