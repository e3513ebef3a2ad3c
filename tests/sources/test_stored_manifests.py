"""Stored manifests: which objects survive a restart of the agent, and which must not."""

import asyncio
import base64
import os
from pathlib import Path

import pytest

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.ports.journal import Journal
from podkeeper.rules.static.pod import FromFile
from podkeeper.sources.manifest_content import ManifestContent, ManifestReader
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import simulate
from tests.sources.static_listener import config_map_text, pod_text

LOCATION = "/manifests/web.yaml"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: password\nstringData:\n  word: hush-hush\n"
SECRET_BYTES = base64.b64encode(b"hush-hush")
ALL = "---\n".join([pod_text("web", more="  - {name: beside, image: x}\n"), config_map_text("settings", "one"), SECRET])


def read(text: str, location: str = LOCATION) -> ManifestContent:
    content = ManifestReader("n1", has_store=True).read(text.encode(), FromFile(location), location)
    assert content.is_complete, content.problems
    return content


def stored_in(journal: Journal, node_name: str = "n1", *, keep_secrets: bool = True) -> StoredManifests:
    return StoredManifests(Checkpoints(journal, "manifest/file/"), node_name, keep_secrets=keep_secrets)


@pytest.mark.parametrize("location", [LOCATION, os.fsdecode(b"/manifests/\xff.yaml"), "http://host/manifests?x=1"])
def test_loaded_objects_equal_those_of_the_source(location: str) -> None:
    journal, items = FakeJournal(), read(ALL, location).items
    stored_in(journal).save({location: items})
    recalled = stored_in(journal).load()
    assert list(recalled) == [location]
    assert [(item.key, item.value) for item in recalled[location]] == [(item.key, item.value) for item in items]


def test_a_problem_of_a_loaded_object_has_its_file_and_line_1() -> None:
    journal = FakeJournal()
    stored_in(journal).save({LOCATION: read(ALL).items})
    problems = [item.problem("cannot be used", "metadata.name") for item in stored_in(journal).load()[LOCATION]]
    assert problems == [Problem("cannot be used", "metadata.name", LOCATION, 1)] * 3


def test_locations_are_loaded_in_order_and_each_change_is_synced() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        kept = stored_in(journal)
        running = asyncio.ensure_future(kept.run())
        kept.save({location: read(pod_text(location[-1]), location).items for location in ("/c", "/a", "/b")})
        await asyncio.sleep(1)
        assert list(stored_in(journal).load()) == ["/a", "/b", "/c"]
        running.cancel()
        await asyncio.wait([running])

    simulate(scenario())


def test_pods_of_one_location_are_loaded_in_their_order() -> None:
    journal, items = FakeJournal(), read("---\n".join(map(pod_text, ["c", "a", "b"]))).items
    stored_in(journal).save({LOCATION: items})
    assert [item.key.name for item in stored_in(journal).load()[LOCATION]] == ["c", "a", "b"]


def test_secrets_are_not_written_without_permission() -> None:
    journal = FakeJournal()
    stored_in(journal, keep_secrets=False).save({LOCATION: read(ALL).items})
    assert not any(b"aHVzaC1odXNo" in data or b"hush-hush" in data for data in journal.load().values())
    assert [item.key.kind for item in stored_in(journal).load()[LOCATION]] == ["Pod", "ConfigMap"]


def test_stored_secrets_are_not_used_and_removed_without_permission() -> None:
    journal = FakeJournal()
    stored_in(journal).save({LOCATION: read(ALL).items})
    recalled = stored_in(journal, keep_secrets=False).load()
    assert [item.key.kind for item in recalled[LOCATION]] == ["Pod", "ConfigMap"]
    assert not any(b"hush-hush" in data for data in journal.load().values())
    assert [item.key.kind for item in stored_in(journal).load()[LOCATION]] == ["Pod", "ConfigMap"]


def test_a_stored_location_is_dropped_when_the_location_is_removed() -> None:
    journal, items = FakeJournal(), read(ALL).items
    kept = stored_in(journal)
    kept.save({LOCATION: items, "/manifests/other.yaml": read(pod_text("other")).items})
    kept.save({LOCATION: items})
    assert len(journal.load()) == 1
    kept.save({LOCATION: ()})
    assert journal.load() == {}


def test_a_loaded_location_is_dropped_if_it_does_not_exist_any_more() -> None:
    journal = FakeJournal()
    stored_in(journal).save({LOCATION: read(ALL).items})
    second = stored_in(journal)
    second.load()
    second.save({})
    assert journal.load() == {}


def test_unchanged_locations_are_not_written_again() -> None:
    journal, items = FakeJournal(), read(ALL).items
    stored_in(journal).save({LOCATION: items})
    written = journal.unsynced_writes
    second = stored_in(journal)
    second.load()
    second.save({LOCATION: items})
    assert journal.unsynced_writes == written


@pytest.mark.parametrize(
    "data",
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
def test_an_undecodable_location_is_dropped_and_the_others_are_loaded(data: bytes) -> None:
    journal = FakeJournal()
    stored_in(journal).save({LOCATION: read(ALL).items})
    journal.put("manifest/file/broken", data)
    assert list(stored_in(journal).load()) == [LOCATION]
    assert "manifest/file/broken" not in journal.load()


def test_locations_of_another_node_name_are_dropped() -> None:
    journal = FakeJournal()
    stored_in(journal).save({LOCATION: read(ALL).items})
    assert stored_in(journal, "n2").load() == {}
    assert journal.load() == {}


def test_writes_become_durable_and_a_failing_disk_blocks_nothing() -> None:
    async def scenario() -> tuple[bool, bool]:
        journal = FakeJournal()
        kept = stored_in(journal)
        running = asyncio.create_task(kept.run())
        journal.disk_full = True
        kept.save({LOCATION: read(pod_text("old")).items})
        await asyncio.sleep(5)
        refused = journal.unsynced_writes > 0
        journal.disk_full = False
        kept.save({LOCATION: read(pod_text("web")).items})
        await asyncio.sleep(5)
        running.cancel()
        journal.crash()
        (item,) = stored_in(journal).load()[LOCATION]
        assert isinstance(item.value, Pod)
        return refused, item.value.metadata.name == "web-n1"

    assert simulate(scenario())[0] == (True, True)


@pytest.mark.parametrize(
    "end",
    ["permission is withdrawn", "its location is gone", "it changes", "another node name", "it cannot be decoded"],
)
def test_a_secret_that_is_no_longer_stored_is_removed_from_the_disk(end: str, tmp_path: Path) -> None:
    path, items = tmp_path / "journal", read(ALL).items

    async def former() -> None:
        journal = FileJournal.open(path)
        stored_in(journal).save({LOCATION: items})
        if end == "it cannot be decoded":
            ((key, data),) = journal.load().items()
            journal.put(key, data[:-1])
        await journal.close()

    async def present() -> None:
        journal = FileJournal.open(path)
        node_name = "n2" if end == "another node name" else "n1"
        kept = stored_in(journal, node_name, keep_secrets=end != "permission is withdrawn")
        running = asyncio.create_task(kept.run())
        kept.load()
        if end == "its location is gone":
            kept.save({})
        if end == "it changes":
            kept.save({LOCATION: read(ALL.replace("hush-hush", "other")).items})
        await asyncio.sleep(0)  # `run` starts to sync
        await journal.close()
        running.cancel()

    asyncio.run(former())
    assert SECRET_BYTES in path.read_bytes()
    asyncio.run(present())
    assert SECRET_BYTES not in path.read_bytes()
