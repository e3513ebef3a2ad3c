"""One agent per journal."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from podkeeper.journal.errors import JournalInUse
from podkeeper.journal.file import FileJournal
from podkeeper.journal.lock import JournalLock

HOLDER = """
import sys
from pathlib import Path
from podkeeper.journal.file import FileJournal

journal = FileJournal.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_agent_gets_the_holders_process_id(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(JournalInUse, match=f"process {holder.pid} has it open") as caught:
            FileJournal.open(path)
        assert caught.value.pid == holder.pid
    finally:
        holder.kill()
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()
    asyncio.run(FileJournal.open(path).close())  # the dead hold nothing


def test_one_process_cannot_open_it_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal.open(path)
    with pytest.raises(JournalInUse, match=str(os.getpid())):
        FileJournal.open(path)
    asyncio.run(journal.close())
    asyncio.run(FileJournal.open(path).close())


def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal.open(path)
    ours, childs = socket.socketpair()
    child = os.fork()
    if child == 0:
        childs.send(b".")  # up
        ours.close()
        childs.recv(1)  # run until the parent has checked the lock
        os._exit(0)
    try:
        ours.recv(1)
        with pytest.raises(JournalInUse):
            FileJournal.open(path)  # the child let go of it for itself alone
        asyncio.run(journal.close())
        asyncio.run(FileJournal.open(path).close())
    finally:
        ours.close()
        childs.close()
        os.waitpid(child, 0)


def test_a_lock_file_names_its_holder_and_is_released_once(tmp_path: Path) -> None:
    path, before = tmp_path / "lock", os.listdir("/proc/self/fd")
    lock = JournalLock.take(path)
    assert (path.read_text(), path.stat().st_mode & 0o777) == (f"{os.getpid()}\n", 0o600)
    held = os.listdir("/proc/self/fd")
    path.write_text("rubbish")
    with pytest.raises(JournalInUse) as raised:
        JournalLock.take(path)
    assert (raised.value.pid, os.listdir("/proc/self/fd")) == (0, held)
    assert str(raised.value).startswith("cannot open the journal: another process has it open")
    lock.release()
    assert os.listdir("/proc/self/fd") == before
    other = os.open(path, os.O_RDONLY)  # gets the number that the lock had
    lock.release()
    os.close(other)
    JournalLock.take(path).release()


def test_a_lock_that_cannot_be_created_is_an_error_and_leaks_no_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        JournalLock.take(tmp_path / "missing" / "lock")
    assert os.listdir("/proc/self/fd") == before
