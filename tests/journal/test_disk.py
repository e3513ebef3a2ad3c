"""The journal's file on disk: the order of syncs, and files that others changed."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podkeeper.journal.disk import Durability, JournalFile, advice, make_ready
from podkeeper.journal.records import HEADER, encode, encode_all

OLD = {"a": b"1"}
MORE = encode("b", b"2")


class RecordingDisk(Durability):
    """Records each sync, as `data name` or `everything name`. One of them can fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refused: tuple[str, int] = ("", 0)  # which sync, with which error

    def data(self, descriptor: int) -> None:
        self._note("data", descriptor)

    def everything(self, descriptor: int) -> None:
        self._note("everything", descriptor)

    def _note(self, kind: str, descriptor: int) -> None:
        call = f"{kind} {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}"
        self.calls.append(call)
        if call == self.refused[0]:
            raise OSError(self.refused[1], os.strerror(self.refused[1]))


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def file(tmp_path: Path, disk: RecordingDisk) -> Iterator[JournalFile]:
    """A file with one entry. At the end no descriptor may be open."""
    before = os.listdir("/proc/self/fd")
    made = JournalFile(tmp_path / "state" / "journal", disk)
    made.rewrite(OLD)
    disk.calls.clear()
    yield made
    assert os.listdir("/proc/self/fd") == before


def names(file: JournalFile) -> list[str]:
    return sorted(os.listdir(file.path.parent))


def test_a_missing_directory_is_created_durably(tmp_path: Path, disk: RecordingDisk) -> None:
    make_ready(tmp_path / "a" / "b" / "journal", disk)
    assert disk.calls == [f"everything {tmp_path.name}", "everything a"]
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
    make_ready(tmp_path / "a" / "b" / "journal", disk)
    assert len(disk.calls) == 2
    assert os.listdir(tmp_path / "a" / "b") == []


def test_a_rewrite_syncs_the_new_file_before_it_gets_its_name(file: JournalFile, disk: RecordingDisk) -> None:
    file.rewrite({"c": b"3"})
    assert disk.calls == ["everything journal.new", "everything state"]
    assert file.path.read_bytes() == encode_all({"c": b"3"})
    assert (file.size, names(file)) == (file.path.stat().st_size, ["journal"])
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_records_are_appended_and_synced(file: JournalFile, disk: RecordingDisk) -> None:
    assert file.append(MORE)
    assert file.append(b"")
    assert disk.calls == ["data journal", "data journal"]
    assert file.path.read_bytes() == encode_all(OLD) + MORE
    assert file.size == file.path.stat().st_size


def replaced(path: Path) -> None:
    text = path.read_bytes()
    path.rename(path.with_name("old"))
    path.write_bytes(text)


CHANGED: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "replaced": replaced,
    "shortened by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED.keys())
def test_nothing_is_appended_to_a_changed_file(
    change: Callable[[Path], object], file: JournalFile, disk: RecordingDisk
) -> None:
    size = file.size
    change(file.path)
    before = file.path.read_bytes() if file.path.exists() else None
    assert not file.append(MORE)
    assert (file.path.read_bytes() if file.path.exists() else None) == before
    assert (file.size, disk.calls) == (size, [])


def test_the_rest_of_a_failed_append_is_cut_off(file: JournalFile, disk: RecordingDisk) -> None:
    disk.refused = ("data journal", errno.EIO)
    with pytest.raises(OSError):
        file.append(encode("longer", bytes(100)))
    assert file.size == len(encode_all(OLD))
    disk.refused = ("", 0)
    assert file.append(MORE)
    assert file.path.read_bytes() == encode_all(OLD) + MORE


@pytest.mark.parametrize("sync", ["everything journal.new", "everything state"])
def test_a_rewrite_that_fails_leaves_no_second_file(sync: str, file: JournalFile, disk: RecordingDisk) -> None:
    size = file.size
    disk.refused = (sync, errno.EIO)
    with pytest.raises(OSError):
        file.rewrite({"c": b"3"})
    kept = OLD if sync == "everything journal.new" else {"c": b"3"}
    assert (names(file), file.path.read_bytes(), file.size) == (["journal"], encode_all(kept), size)
    disk.refused = ("", 0)
    if sync == "everything state":
        assert not file.append(MORE)  # its name may not be durable


def test_a_directory_that_cannot_be_synced_does_not_need_it(file: JournalFile, disk: RecordingDisk) -> None:
    disk.refused = ("everything state", errno.EINVAL)
    file.rewrite({"c": b"3"})
    assert file.append(MORE)


def test_a_file_is_read_and_an_interrupted_rewrite_is_removed(file: JournalFile) -> None:
    file.path.with_name("journal.new").write_bytes(b"half")
    fresh = JournalFile(file.path)
    assert (fresh.read(), fresh.size, fresh.damaged) == (encode_all(OLD), len(encode_all(OLD)), False)
    assert names(file) == ["journal"]
    assert fresh.append(MORE)


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal")
    assert (file.read(), file.size) == (b"", 0)
    assert not file.append(MORE)


def test_a_cut_is_durable(file: JournalFile, disk: RecordingDisk) -> None:
    file.append(MORE)
    file.cut(len(HEADER))
    assert disk.calls == ["data journal", "everything journal"]
    assert (file.path.read_bytes(), file.size) == (HEADER, len(HEADER))
    disk.refused = ("everything journal", errno.EIO)
    with pytest.raises(OSError):
        file.cut(3)
    assert file.size == len(HEADER)


def test_a_damaged_file_gets_the_first_free_name(file: JournalFile) -> None:
    file.path.with_name("journal.damaged-1").write_bytes(b"earlier")
    damaged = file.path.read_bytes()
    file.damaged = True
    file.rewrite({"c": b"3"})
    file.rewrite({"d": b"4"})
    assert names(file) == ["journal", "journal.damaged-1", "journal.damaged-2"]
    assert file.path.with_name("journal.damaged-1").read_bytes() == b"earlier"
    assert file.path.with_name("journal.damaged-2").read_bytes() == damaged
    assert not file.damaged


def test_a_damaged_file_that_was_removed_is_not_kept(file: JournalFile) -> None:
    file.damaged = True
    file.path.unlink()
    file.rewrite({"c": b"3"})
    assert (names(file), file.damaged) == (["journal"], False)


ADVICE = {
    errno.ENOSPC: "no space left on device; free space on the file system of /state",
    errno.EDQUOT: "disk quota exceeded; free space on the file system of /state",
    errno.EROFS: "read-only file system; mount the file system of /state read-write again (`dmesg` may show "
    "the reason)",
    errno.EACCES: f"permission denied; give user {os.geteuid()} write permission for /state",
    errno.EPERM: f"operation not permitted; give user {os.geteuid()} write permission for /state",
    errno.EFBIG: "file too large; raise the limit on the size of files (`ulimit -f`)",
    errno.EIO: "input/output error; the disk may be failing, check `dmesg`",
    errno.EMFILE: "too many open files; raise the limit on open files (`ulimit -n`)",
    errno.ENFILE: "too many open files in system; raise the limit on open files (`ulimit -n`)",
    errno.ENOTDIR: "not a directory; check /state/journal",
}


@pytest.mark.parametrize("code", ADVICE, ids=errno.errorcode.get)
def test_each_error_comes_with_advice(code: int) -> None:
    assert advice(OSError(code, os.strerror(code)), Path("/state/journal")) == ADVICE[code]


def test_an_error_without_a_number_comes_with_its_text() -> None:
    assert advice(OSError("Odd"), Path("/state/journal")) == "odd; check /state/journal"
