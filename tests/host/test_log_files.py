"""The log tree on a real disk: what is seen of it, and that each step leaves something to go on from."""

import asyncio
import gzip
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from podkeeper.host.log_files import HostLogFiles
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree

T = TypeVar("T")

POD = "default_web_1234"
LOGS = ContainerLogs(POD, "app", {})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of a container's logs, in a tree of its own."""
    made = tmp_path / POD / "app"
    made.mkdir(parents=True)
    return made


def does(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_a_tree_is_seen_as_it_is(tmp_path: Path, home: Path) -> None:
    (home / "0.log").write_bytes(b"12345")
    (home / "0.log.20261115-100001.gz").write_bytes(b"")
    (home / "link.log").symlink_to(home / "0.log")
    (tmp_path / "default_empty_5678").mkdir()
    (tmp_path / "stray-file").write_text("")
    (tmp_path / "default_linked_9").symlink_to(home.parent)
    tree = does(HostLogFiles(tmp_path).survey())
    assert set(tree.pods) == {POD, "default_empty_5678"}
    assert tree.logs == (ContainerLogs(POD, "app", {"0.log": 5, "0.log.20261115-100001.gz": 0}),)
    assert not tree.has_litter


def test_a_tree_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert does(HostLogFiles(tmp_path / "none").survey()) == LogTree((), (), has_litter=False)


def test_a_file_is_moved_and_moved_back(tmp_path: Path, home: Path) -> None:
    files = HostLogFiles(tmp_path)
    (home / "0.log").write_text("old")
    does(files.move(LOGS, "0.log", "0.log.1"))
    assert not files.exists(LOGS, "0.log")
    does(files.move_back(LOGS, "0.log", "0.log.1"))
    assert (home / "0.log").read_text() == "old"
    assert os.listdir(home) == ["0.log"]


def test_nothing_is_moved_over_anything(tmp_path: Path, home: Path) -> None:
    files = HostLogFiles(tmp_path)
    (home / "0.log").write_text("new")
    (home / "0.log.1").write_text("old")
    with pytest.raises(TryLater, match=r"cannot rotate .*0\.log: .*is there already"):
        does(files.move(LOGS, "0.log", "0.log.1"))
    does(files.move_back(LOGS, "0.log", "0.log.1"))
    assert [(home / name).read_text() for name in ("0.log", "0.log.1")] == ["new", "old"]


def test_a_part_is_compressed_with_the_rights_it_had(tmp_path: Path, home: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(50_000))
    (home / "part").write_bytes(content)
    (home / "part").chmod(0o640)
    (home / "part.tmp").write_text("left behind, and longer than nothing")
    does(HostLogFiles(tmp_path).compress(LOGS, "part"))
    assert os.listdir(home) == ["part.gz"]
    assert gzip.decompress((home / "part.gz").read_bytes()) == content
    assert (home / "part.gz").stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_compressed_stays(tmp_path: Path, home: Path) -> None:
    (home / "part").write_text("kept")
    (home / "part.tmp").mkdir()
    with pytest.raises(TryLater, match="cannot compress"):
        does(HostLogFiles(tmp_path).compress(LOGS, "part"))
    assert (home / "part").read_text() == "kept"


def test_what_is_gone_is_gone(tmp_path: Path, home: Path) -> None:
    files = HostLogFiles(tmp_path)
    does(files.remove(LOGS, ["none", "0.log"]))
    does(files.compress(LOGS, "none"))
    files.put_aside("default_none_1")
    does(files.clear())
    assert os.listdir(home) == []


def test_files_are_removed(tmp_path: Path, home: Path) -> None:
    for name in ("a", "b", "c"):
        (home / name).write_text(name)
    does(HostLogFiles(tmp_path).remove(LOGS, ["a", "c"]))
    assert os.listdir(home) == ["b"]


def test_a_pods_logs_are_out_of_sight_at_once_and_then_deleted(tmp_path: Path, home: Path) -> None:
    files = HostLogFiles(tmp_path)
    (home / "0.log").write_text("old")
    files.put_aside(POD)
    assert does(files.survey()) == LogTree((), (), has_litter=True)
    home.mkdir(parents=True)  # the same pod comes again meanwhile
    does(files.clear())
    assert os.listdir(tmp_path) == [POD]


def test_a_part_that_is_removed_while_it_is_compressed_does_not_come_back(tmp_path: Path, home: Path) -> None:
    os.mkfifo(home / "part")  # which is read for as long as the test wants

    async def scenario() -> None:
        compressing = asyncio.create_task(HostLogFiles(tmp_path).compress(LOGS, "part"))
        writer = await asyncio.to_thread((home / "part").open, "wb", 0)
        await HostLogFiles(tmp_path).remove(LOGS, ["part"])
        writer.write(b"too late")
        writer.close()
        await asyncio.wait_for(compressing, 10)

    does(scenario())
    assert os.listdir(home) == []
