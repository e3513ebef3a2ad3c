"""Scans of manifest files: which files are read again, with and without inotify."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeeper.rules.static.pod import Origin
from podkeeper.sources.manifest_content import ManifestContent, ManifestReader
from podkeeper.sources.manifest_paths import WatchPoint, watch_points
from podkeeper.sources.manifest_scan import REMOVAL_SECONDS, ManifestScan, ManifestScanner, owner_of, scan_once
from podkeeper.sources.watch import SILENCE_SECONDS, ManifestWatch
from tests.sources.static_listener import pod_text


@contextmanager
def scanner_of(*paths: Path) -> Iterator[ManifestScanner]:
    scanner = ManifestScanner(tuple(map(str, paths)), ManifestReader("n1", has_store=True))
    try:
        yield scanner
    finally:
        scanner.close()
    assert scanner.watch is None


@contextmanager
def watch_of(path: Path) -> Iterator[ManifestWatch]:
    watch = ManifestWatch()
    try:
        assert watch.set_points(watch_points(str(path))) is None
        yield watch
    finally:
        watch.close()


def scan_files(scanner: ManifestScanner, now: float = 0.0, later: float = 0.0) -> ManifestScan:
    return scanner.scan(time.time_ns() + int(later * 1e9), now)


def pods_in(scan: ManifestScan) -> list[str]:
    return [f"{item.key.name}" for seen in scan.files.values() for item in seen.content.items]


def test_a_file_that_changes_without_its_times_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    with scanner_of(tmp_path) as scanner:
        assert pods_in(scan_files(scanner, later=10)) == ["web"]
        before = path.stat()
        path.write_text(pod_text("dbx"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        scanner.watch.drain(0.0) if scanner.watch else None
        assert pods_in(scan_files(scanner, later=20)) == ["dbx"]


def test_a_removed_file_is_kept_for_the_removal_time(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    with scanner_of(tmp_path) as scanner:
        first = scan_files(scanner, now=10.0)
        path.unlink()
        second = scan_files(scanner, now=11.0)
        assert pods_in(second) == ["web"]
        assert second.rescan_seconds == pytest.approx(REMOVAL_SECONDS)
        assert pods_in(scan_files(scanner, now=11.0 + REMOVAL_SECONDS / 2)) == ["web"]
        assert pods_in(scan_files(scanner, now=11.0 + REMOVAL_SECONDS + 0.001)) == []
        path.write_text(pod_text("web"))
        assert pods_in(scan_files(scanner, now=12.0)) == ["web"]
        assert first.rescan_seconds is None


def test_after_lost_events_a_new_file_is_not_read_for_a_second(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    with scanner_of(tmp_path) as scanner:
        scan_files(scanner)
        assert scanner.watch is not None
        scanner.watch.lost = True
        path.write_text(pod_text("half"))
        lost = scan_files(scanner)
        assert (pods_in(lost), lost.rescan_seconds) == (["web"], 1.0)
        assert not scanner.watch.lost
        assert pods_in(scan_files(scanner, later=2)) == ["half"]


def test_a_watch_reports_lost_events(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"the kernel queues {most} events: too many to overflow in a test")
    with watch_of(tmp_path) as watch:
        descriptors = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in (".a", ".b")]
        watch.drain(0.0)
        try:
            for _ in range(most // 2 + 1):  # two files in turn, because the kernel merges equal events
                for descriptor in descriptors:
                    os.pwrite(descriptor, b"x", 0)
            assert watch.drain(0.0)  # because of the lost events, as hidden files are ignored
            assert watch.lost
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def test_a_change_of_permissions_is_found_after_an_unfinished_write(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    with watch_of(tmp_path) as watch, path.open("w") as file:
        file.write("x")
        file.flush()
        assert not watch.drain(100.0)
        path.chmod(0o600)
        assert not watch.drain(100.1)  # the file is still being written
        assert watch.unfinished(100.1 + SILENCE_SECONDS) == {}
        path.chmod(0o644)
        assert watch.drain(102.0)


def test_a_watch_waits_for_unfinished_files_for_a_second(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    with watch_of(tmp_path) as watch, path.open("w") as file:
        assert not watch.drain(100.0)
        assert watch.unfinished(100.5) == {str(path): SILENCE_SECONDS - 0.5}
        file.write("x")
        file.flush()
        assert not watch.drain(100.9)
        assert watch.unfinished(101.5) != {}
        assert watch.unfinished(100.9 + SILENCE_SECONDS) == {}
        file.write("y")
        file.close()
        assert watch.drain(102.0)
        assert watch.unfinished(102.0) == {}


def test_links_missing_names_and_the_last_name_are_watched(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("../" + tmp_path.name + "/real")
    here = str(tmp_path)
    turns = {(point.directory, point.name) for point in watch_points(f"{here}/link/no/way")}
    assert turns == {(here, "link"), (f"{here}/real", "no")}
    ends = {(point.directory, point.name) for point in watch_points(f"{here}/link")}
    assert ends == {(here, "link"), (here, "real"), (f"{here}/link", None)}
    (tmp_path / "loop").symlink_to("loop")
    assert {point.name for point in watch_points(f"{here}/loop")} == {"loop"}


WITHOUT_INOTIFY = """
import sys, time
from podkeeper.sources.manifest_content import ManifestReader
from podkeeper.sources.manifest_scan import ManifestScanner
scanner = ManifestScanner((sys.argv[1],), ManifestReader("n1", has_store=False))
found = scanner.scan(time.time_ns(), 0.0)
print(len(found.files), found.watch_error)
"""


def test_without_inotify_files_are_read_and_a_warning_is_returned(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))
    script = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    try:
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("user namespaces are not available")
    except FileNotFoundError:
        pytest.skip("unshare not found")
    done = subprocess.run(
        [*command, sys.executable, "-c", WITHOUT_INOTIFY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("1 cannot watch for changes:"), done.stderr
    assert "max_user_instances" in done.stdout


# Exact times.

SECOND = 1_000_000_000


class CountingReader:
    """Reads manifests and counts the reads."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def scanner(self, *paths: Path, stored: Iterable[str] = ()) -> ManifestScanner:
        outer = self

        class Counting(ManifestReader):
            def read(self, data: bytes, origin: Origin, name: str) -> ManifestContent:
                outer.read.append(os.path.basename(name))
                return super().read(data, origin, name)

        return ManifestScanner(tuple(map(str, paths)), Counting("n1", has_store=True), stored)


def changed_ns(path: Path) -> int:
    return path.stat().st_ctime_ns


def test_a_file_is_read_again_only_after_a_change_or_if_it_was_read_shortly_after_one(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    counter = CountingReader()
    scanner = counter.scanner(tmp_path)
    at = changed_ns(path)
    first = scanner.scan(at + 100_000_000, 0.0)  # too soon to distinguish two writes
    assert [seen.stamp for seen in first.files.values()] == [None]
    second = scanner.scan(at + 100_000_001, 0.0)
    (seen,) = second.files.values()
    info = path.stat()
    assert seen.stamp == (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    assert scanner.scan(at + SECOND, 0.0).files == second.files
    assert counter.read == ["web.yaml"]  # the same text is not parsed again
    path.write_text(pod_text("db"))
    assert pods_in(scanner.scan(changed_ns(path) + 2 * SECOND, 0.0)) == ["db"]
    assert counter.read == ["web.yaml", "web.yaml"]
    assert seen.version != next(iter(scanner.scan(changed_ns(path) + 2 * SECOND, 0.0).files.values())).version
    scanner.close()


@pytest.mark.parametrize("age_ns, expected", [(0, "old"), (SECOND - 1, "old"), (SECOND, "new"), (-1, "new")], ids=str)
def test_without_a_watch_a_changed_file_is_not_read_for_a_second(age_ns: int, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("old"))
    scanner = CountingReader().scanner(tmp_path)
    first = scanner.scan_files(changed_ns(path), 0.0, "no watch")
    assert (pods_in(first), first.watch_error, first.rescan_seconds) == (
        ["old"],
        "no watch",
        None,
    )  # at the start the file is read at once
    path.write_text(pod_text("new"))
    scan = scanner.scan_files(changed_ns(path) + age_ns, 0.0, "no watch")
    assert (pods_in(scan), scan.rescan_seconds) == ([expected], 1.0 if expected == "old" else None)


def test_a_restored_file_resets_its_removal_time(tmp_path: Path) -> None:
    path, aside = tmp_path / "web.yaml", tmp_path / ".aside"
    path.write_text(pod_text("web"))
    counter = CountingReader()
    scanner = counter.scanner(tmp_path)
    late = changed_ns(path) + 10 * SECOND
    scanner.scan_files(late, 1.0, None)
    path.rename(aside)
    away = scanner.scan_files(late, 2.0, None)
    (seen,) = away.files.values()
    assert (seen.missing_since, seen.stamp) == (2.0, None)
    assert away.rescan_seconds == pytest.approx(0.2)
    still = scanner.scan_files(late, 2.15, None)
    assert [each.missing_since for each in still.files.values()] == [2.0]
    assert still.rescan_seconds == pytest.approx(0.05)
    aside.rename(path)
    (back,) = scanner.scan_files(late, 2.19, None).files.values()
    assert back.missing_since is None
    path.rename(aside)
    assert pods_in(scanner.scan_files(late, 3.0, None)) == ["web"]
    assert pods_in(scanner.scan_files(late, 3.2, None)) == []
    assert scanner.scan_files(late, 3.3, None).files == {}


def test_a_stored_file_is_dropped_if_it_is_removed_and_kept_if_it_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    removed = str(tmp_path / "dir" / "removed.yaml")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    unreadable = str(loop / "x.yaml")
    scanner = CountingReader().scanner(tmp_path / "dir", loop, stored=(removed, unreadable, "/elsewhere/y.yaml"))
    scan = scanner.scan_files(0, 0.0, None)
    assert (list(scan.files), scan.complete) == ([unreadable], False)
    assert (scan.files[unreadable].stored, scan.files[unreadable].content.is_complete) == (True, False)
    assert list(scan.problems) == [str(loop)]
    loop.unlink()
    loop.mkdir()
    (loop / "x.yaml").write_text(pod_text("x"))
    scan = scanner.scan_files(time.time_ns() + SECOND, 0.0, None)
    assert (pods_in(scan), scan.complete, dict(scan.problems)) == (["x"], True, {})
    assert not scan.files[unreadable].stored


def test_other_kinds_of_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    scan = CountingReader().scanner(tmp_path).scan_files(time.time_ns() + SECOND, 0.0, None)
    updates = {
        os.path.basename(path): (seen.content.problems[0].message, seen.content.is_complete, seen.stamp is None)
        for path, seen in scan.files.items()
    }
    assert updates == {
        "broken": ("cannot read the file: the target of the symbolic link does not exist", False, True),
        "folder": (
            "subdirectories are ignored; to use this one, add it as a separate path", True, False,
        ),
        "loop": ("cannot read the file: Too many levels of symbolic links", False, True),
        "pipe": ("cannot read the file: not a regular file", True, False),
    }  # fmt: skip
    assert {seen.content.problems[0].file for seen in scan.files.values()} == set(scan.files)


def test_files_are_in_the_order_of_the_paths_and_belong_to_the_first_one(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a/3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(pod_text("p" + name[-1]))
    scanner = CountingReader().scanner(tmp_path / "b", tmp_path / "a", tmp_path / "b" / "2")
    scan = scanner.scan_files(time.time_ns() + SECOND, 0.0, None)
    assert pods_in(scan) == ["p1", "p2", "p3"]
    assert owner_of("/a/b", ("/x", "/a")) == "/a"
    assert [owner_of("/a/b", paths) for paths in (("/a/b", "/a"), ("/",), ())] == ["/a/b", None, None]


def test_scan_once(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))
    scan = scan_once(f"{tmp_path}/./", ManifestReader("n1", has_store=True))
    assert (pods_in(scan), scan.complete, scan.rescan_seconds) == (["web"], True, None)


def test_a_closed_scanner_has_no_watch(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    scanner = CountingReader().scanner(tmp_path)
    scan_files(scanner)
    assert scanner.watch is not None
    scanner.close()
    scanner.close()
    assert scanner.watch is None
    scan_files(scanner)  # a scan that was in progress ends
    assert (scanner.watch, os.listdir("/proc/self/fd")) == (None, before)


def test_a_watch_reports_what_it_cannot_watch_and_watches_the_rest(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    here, loop = str(tmp_path), str(tmp_path / "loop")
    watch = ManifestWatch()
    try:
        passing = [WatchPoint(f"{here}/gone", None, here, True), WatchPoint(f"{here}/file", None, here, True)]
        assert watch.set_points(passing) is None  # removed between listing and watching
        problem = watch.set_points(
            [WatchPoint(loop, None, loop, True), WatchPoint(here, "web.yaml", f"{here}/web.yaml", True)]
        )
        assert problem == f"cannot watch {loop}: Too many levels of symbolic links"
        (tmp_path / "other.yaml").write_text("")
        assert not watch.drain(1.0)
        (tmp_path / "web.yaml").write_text("")
        assert watch.drain(1.0)
        assert watch.set_points([]) is None
        watch.drain(1.0)
        (tmp_path / "web.yaml").write_text("x")
        assert (watch.drain(1.0), watch.unfinished(1.0), watch.lost) == (False, {}, False)
    finally:
        watch.close()
        watch.close()


def test_creation_and_removal_of_hidden_names_and_directories_are_changes_but_writes_are_not(tmp_path: Path) -> None:
    with watch_of(tmp_path) as watch:
        (tmp_path / ".hidden").write_text("x")
        assert watch.drain(1.0)
        (tmp_path / ".hidden").write_text("y")
        assert not watch.drain(1.0)
        (tmp_path / "folder").mkdir()
        assert watch.drain(1.0)
        (tmp_path / "folder").chmod(0o700)
        assert not watch.drain(1.0)
        (tmp_path / "web.yaml").symlink_to("nowhere")
        assert (watch.drain(1.0), watch.unfinished(1.0)) == (True, {})
        (tmp_path / "web.yaml").unlink()
        assert watch.drain(1.0)
        tmp_path.rename(tmp_path.with_name("moved"))
        assert watch.drain(1.0)
