"""Container log files on a real disk."""

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
def logs_directory(tmp_path: Path) -> Path:
    """The log directory of a container."""
    directory = tmp_path / POD / "app"
    directory.mkdir(parents=True)
    return directory


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_all_logs_are_listed(tmp_path: Path, logs_directory: Path) -> None:
    (logs_directory / "0.log").write_bytes(b"12345")
    (logs_directory / "0.log.20261115-100001.gz").write_bytes(b"")
    (logs_directory / "link.log").symlink_to(logs_directory / "0.log")
    (tmp_path / "default_empty_5678").mkdir()
    (tmp_path / "stray-file").write_text("")
    (tmp_path / "default_linked_9").symlink_to(logs_directory.parent)
    tree = run(HostLogFiles(tmp_path).list_logs())
    assert set(tree.pods) == {POD, "default_empty_5678"}
    assert tree.logs == (ContainerLogs(POD, "app", {"0.log": 5, "0.log.20261115-100001.gz": 0}),)
    assert not tree.has_leftovers


def test_a_missing_directory_has_no_logs(tmp_path: Path) -> None:
    assert run(HostLogFiles(tmp_path / "none").list_logs()) == LogTree((), (), has_leftovers=False)


def test_a_file_is_renamed_and_renamed_back(tmp_path: Path, logs_directory: Path) -> None:
    files = HostLogFiles(tmp_path)
    (logs_directory / "0.log").write_text("old")
    run(files.move(LOGS, "0.log", "0.log.1"))
    assert not files.exists(LOGS, "0.log")
    run(files.move_back(LOGS, "0.log", "0.log.1"))
    assert (logs_directory / "0.log").read_text() == "old"
    assert os.listdir(logs_directory) == ["0.log"]


def test_renaming_never_replaces_a_file(tmp_path: Path, logs_directory: Path) -> None:
    files = HostLogFiles(tmp_path)
    (logs_directory / "0.log").write_text("new")
    (logs_directory / "0.log.1").write_text("old")
    with pytest.raises(TryLater, match=r"cannot rotate .*0\.log: .*already exists"):
        run(files.move(LOGS, "0.log", "0.log.1"))
    run(files.move_back(LOGS, "0.log", "0.log.1"))
    assert [(logs_directory / name).read_text() for name in ("0.log", "0.log.1")] == ["new", "old"]


def test_a_compressed_file_keeps_its_mode(tmp_path: Path, logs_directory: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(50_000))
    (logs_directory / "part").write_bytes(content)
    (logs_directory / "part").chmod(0o640)
    (logs_directory / "part.tmp").write_text("left by a crash")
    run(HostLogFiles(tmp_path).compress(LOGS, "part"))
    assert os.listdir(logs_directory) == ["part.gz"]
    assert gzip.decompress((logs_directory / "part.gz").read_bytes()) == content
    assert (logs_directory / "part.gz").stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_compressed_stays(tmp_path: Path, logs_directory: Path) -> None:
    (logs_directory / "part").write_text("kept")
    (logs_directory / "part.tmp").mkdir()
    with pytest.raises(TryLater, match="cannot compress"):
        run(HostLogFiles(tmp_path).compress(LOGS, "part"))
    assert (logs_directory / "part").read_text() == "kept"


def test_missing_files_are_no_error(tmp_path: Path, logs_directory: Path) -> None:
    files = HostLogFiles(tmp_path)
    run(files.remove(LOGS, ["none", "0.log"]))
    run(files.compress(LOGS, "none"))
    files.put_aside("default_none_1")
    run(files.clear())
    assert os.listdir(logs_directory) == []


def test_files_are_removed(tmp_path: Path, logs_directory: Path) -> None:
    for name in ("a", "b", "c"):
        (logs_directory / name).write_text(name)
    run(HostLogFiles(tmp_path).remove(LOGS, ["a", "c"]))
    assert os.listdir(logs_directory) == ["b"]


def test_the_logs_of_a_pod_are_hidden_at_once_and_then_deleted(tmp_path: Path, logs_directory: Path) -> None:
    files = HostLogFiles(tmp_path)
    (logs_directory / "0.log").write_text("old")
    files.put_aside(POD)
    assert run(files.list_logs()) == LogTree((), (), has_leftovers=True)
    logs_directory.mkdir(parents=True)  # the same pod is created again
    run(files.clear())
    assert os.listdir(tmp_path) == [POD]


def test_a_file_removed_during_its_compression_stays_removed(tmp_path: Path, logs_directory: Path) -> None:
    os.mkfifo(logs_directory / "part")  # a pipe, so that the test controls when the read ends

    async def scenario() -> None:
        compressing = asyncio.create_task(HostLogFiles(tmp_path).compress(LOGS, "part"))
        writer = await asyncio.to_thread((logs_directory / "part").open, "wb", 0)
        await HostLogFiles(tmp_path).remove(LOGS, ["part"])
        writer.write(b"too late")
        writer.close()
        await asyncio.wait_for(compressing, 10)

    run(scenario())
    assert os.listdir(logs_directory) == []
