"""Log links on a real disk."""

import asyncio
import os
from pathlib import Path

import pytest

from podkeeper.host.log_links import HostLogLinks
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import LogLink


def test_a_link_leads_to_its_log_until_it_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("hello\n")
    links = HostLogLinks(tmp_path / "var" / "containers")

    async def scenario() -> None:
        assert await links.list_links() == {}
        await links.make([LogLink("a.log", str(log)), LogLink("b.log", str(tmp_path / "never.log"))])
        assert await links.list_links() == {"a.log": True}
        assert (tmp_path / "var" / "containers" / "a.log").read_text() == "hello\n"
        await links.make([LogLink("a.log", str(log))])  # idempotent
        log.unlink()
        assert await links.list_links() == {"a.log": False}
        await links.remove(["a.log", "unknown.log"])
        assert await links.list_links() == {}

    asyncio.run(scenario())


def test_other_files_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "file.log").write_text("mine")
    os.symlink(tmp_path / "nowhere", tmp_path / "other")
    links = HostLogLinks(tmp_path)

    async def scenario() -> None:
        assert await links.list_links() == {}
        await links.remove(["file.log"])

    asyncio.run(scenario())
    assert (tmp_path / "file.log").read_text() == "mine"


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    links = HostLogLinks(tmp_path / "file" / "below")
    with pytest.raises(TryLater, match=r"cannot create the log links in .*below"):
        asyncio.run(links.make([]))
