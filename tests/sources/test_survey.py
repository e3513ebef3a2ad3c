"""Looking at files: what is read again, what the watch tells, and what is done where there is none."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeeper.rules.static import Origin
from podkeeper.sources.contents import Contents, Reader
from podkeeper.sources.places import Point, points_of
from podkeeper.sources.survey import GONE_SECONDS, Survey, Surveyor, look_once, owner_of
from podkeeper.sources.watch import SILENCE_SECONDS, Watch
from tests.sources.static_listener import pod_text


@contextmanager
def surveyor_of(*paths: Path) -> Iterator[Surveyor]:
    surveyor = Surveyor(tuple(map(str, paths)), Reader("n1", has_store=True))
    try:
        yield surveyor
    finally:
        surveyor.close()
    assert surveyor.watch is None


@contextmanager
def watch_of(path: Path) -> Iterator[Watch]:
    watch = Watch()
    try:
        assert watch.point_at(points_of(str(path))) is None
        yield watch
    finally:
        watch.close()


def look(surveyor: Surveyor, now: float = 0.0, later: float = 0.0) -> Survey:
    return surveyor.survey(time.time_ns() + int(later * 1e9), now)


def held(survey: Survey) -> list[str]:
    return [f"{item.key.name}" for seen in survey.files.values() for item in seen.contents.items]


def test_a_file_that_changes_without_its_times_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    with surveyor_of(tmp_path) as surveyor:
        assert held(look(surveyor, later=10)) == ["web"]
        before = path.stat()
        path.write_text(pod_text("dbx"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        surveyor.watch.drain(0.0) if surveyor.watch else None
        assert held(look(surveyor, later=20)) == ["dbx"]


def test_a_file_is_gone_only_after_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    with surveyor_of(tmp_path) as surveyor:
        first = look(surveyor, now=10.0)
        path.unlink()
        second = look(surveyor, now=11.0)
        assert held(second) == ["web"]
        assert second.again_in == pytest.approx(GONE_SECONDS)
        assert held(look(surveyor, now=11.0 + GONE_SECONDS / 2)) == ["web"]
        assert held(look(surveyor, now=11.0 + GONE_SECONDS + 0.001)) == []
        path.write_text(pod_text("web"))
        assert held(look(surveyor, now=12.0)) == ["web"]
        assert first.again_in is None


def test_after_lost_events_a_young_file_is_left_alone_for_a_second(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    with surveyor_of(tmp_path) as surveyor:
        look(surveyor)
        assert surveyor.watch is not None
        surveyor.watch.lost = True
        path.write_text(pod_text("half"))
        lost = look(surveyor)
        assert (held(lost), lost.again_in) == (["web"], 1.0)
        assert not surveyor.watch.lost
        assert held(look(surveyor, later=2)) == ["half"]


def test_a_watch_says_that_events_were_lost(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"the kernel queues {most} events: too many to overflow in a test")
    with watch_of(tmp_path) as watch:
        descriptors = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in (".a", ".b")]
        watch.drain(0.0)
        try:
            for _ in range(most // 2 + 1):  # two files in turn: the kernel joins only events that are alike
                for descriptor in descriptors:
                    os.pwrite(descriptor, b"x", 0)
            assert watch.drain(0.0)  # not for the writes: hidden files say nothing
            assert watch.lost
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def test_a_writer_that_fell_silent_does_not_hide_a_change_of_permissions(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    with watch_of(tmp_path) as watch, path.open("w") as file:
        file.write("x")
        file.flush()
        assert not watch.drain(100.0)
        path.chmod(0o600)
        assert not watch.drain(100.1)  # it is still being written
        assert watch.unfinished(100.1 + SILENCE_SECONDS) == {}
        path.chmod(0o644)
        assert watch.drain(102.0)


def test_a_watch_waits_for_writers_and_not_for_ever(tmp_path: Path) -> None:
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


def test_a_watch_points_at_links_at_what_is_missing_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("../" + tmp_path.name + "/real")
    here = str(tmp_path)
    turns = {(point.directory, point.name) for point in points_of(f"{here}/link/no/way")}
    assert turns == {(here, "link"), (f"{here}/real", "no")}
    ends = {(point.directory, point.name) for point in points_of(f"{here}/link")}
    assert ends == {(here, "link"), (here, "real"), (f"{here}/link", None)}
    (tmp_path / "loop").symlink_to("loop")
    assert {point.name for point in points_of(f"{here}/loop")} == {"loop"}


WITHOUT_INOTIFY = """
import sys, time
from podkeeper.sources.contents import Reader
from podkeeper.sources.survey import Surveyor
surveyor = Surveyor((sys.argv[1],), Reader("n1", has_store=False))
found = surveyor.survey(time.time_ns(), 0.0)
print(len(found.files), found.watch_trouble)
"""


def test_without_inotify_files_are_read_and_a_warning_is_returned(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))
    script = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    try:
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("user namespaces are not to be had here")
    except FileNotFoundError:
        pytest.skip("there is no unshare command")
    done = subprocess.run(
        [*command, sys.executable, "-c", WITHOUT_INOTIFY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("1 cannot watch for changes:"), done.stderr
    assert "max_user_instances" in done.stdout


# Exact moments, and what is looked at again.

SECOND = 1_000_000_000


class CountingReader:
    """Reads manifests, and counts how often."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def surveyor(self, *paths: Path, stored: Iterable[str] = ()) -> Surveyor:
        outer = self

        class Counting(Reader):
            def read(self, data: bytes, origin: Origin, shown: str) -> Contents:
                outer.read.append(os.path.basename(shown))
                return super().read(data, origin, shown)

        return Surveyor(tuple(map(str, paths)), Counting("n1", has_store=True), stored)


def changed_ns(path: Path) -> int:
    return path.stat().st_ctime_ns


def test_a_file_is_read_again_only_if_it_changed_or_was_read_within_moments_of_a_change(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    counter = CountingReader()
    surveyor = counter.surveyor(tmp_path)
    at = changed_ns(path)
    first = surveyor.survey(at + 100_000_000, 0.0)  # too soon to tell two writes apart
    assert [seen.stamp for seen in first.files.values()] == [None]
    second = surveyor.survey(at + 100_000_001, 0.0)
    (seen,) = second.files.values()
    info = path.stat()
    assert seen.stamp == (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    assert surveyor.survey(at + SECOND, 0.0).files == second.files
    assert counter.read == ["web.yaml"]  # the same text is not parsed again
    path.write_text(pod_text("db"))
    assert held(surveyor.survey(changed_ns(path) + 2 * SECOND, 0.0)) == ["db"]
    assert counter.read == ["web.yaml", "web.yaml"]
    assert seen.version != next(iter(surveyor.survey(changed_ns(path) + 2 * SECOND, 0.0).files.values())).version
    surveyor.close()


@pytest.mark.parametrize("age_ns, expected", [(0, "old"), (SECOND - 1, "old"), (SECOND, "new"), (-1, "new")], ids=str)
def test_without_a_watch_a_file_is_left_alone_for_a_second(age_ns: int, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("old"))
    surveyor = CountingReader().surveyor(tmp_path)
    first = surveyor.look(changed_ns(path), 0.0, "no watch")
    assert (held(first), first.watch_trouble, first.again_in) == (["old"], "no watch", None)  # at the start it counts
    path.write_text(pod_text("new"))
    survey = surveyor.look(changed_ns(path) + age_ns, 0.0, "no watch")
    assert (held(survey), survey.again_in) == ([expected], 1.0 if expected == "old" else None)


def test_a_file_that_is_away_comes_back_with_the_time_it_went_forgotten(tmp_path: Path) -> None:
    path, aside = tmp_path / "web.yaml", tmp_path / ".aside"
    path.write_text(pod_text("web"))
    counter = CountingReader()
    surveyor = counter.surveyor(tmp_path)
    late = changed_ns(path) + 10 * SECOND
    surveyor.look(late, 1.0, None)
    path.rename(aside)
    away = surveyor.look(late, 2.0, None)
    (seen,) = away.files.values()
    assert (seen.missing_since, seen.stamp) == (2.0, None)
    assert away.again_in == pytest.approx(0.2)
    still = surveyor.look(late, 2.15, None)
    assert [each.missing_since for each in still.files.values()] == [2.0]
    assert still.again_in == pytest.approx(0.05)
    aside.rename(path)
    (back,) = surveyor.look(late, 2.19, None).files.values()
    assert back.missing_since is None
    path.rename(aside)
    assert held(surveyor.look(late, 3.0, None)) == ["web"]
    assert held(surveyor.look(late, 3.2, None)) == []
    assert surveyor.look(late, 3.3, None).files == {}


def test_a_stored_file_that_was_removed_is_gone_at_once_and_one_that_cannot_be_read_is_not(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    removed = str(tmp_path / "dir" / "removed.yaml")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    unreadable = str(loop / "x.yaml")
    surveyor = CountingReader().surveyor(tmp_path / "dir", loop, stored=(removed, unreadable, "/elsewhere/y.yaml"))
    survey = surveyor.look(0, 0.0, None)
    assert (list(survey.files), survey.complete) == ([unreadable], False)
    assert (survey.files[unreadable].stored, survey.files[unreadable].contents.whole) == (True, False)
    assert list(survey.problems) == [str(loop)]
    loop.unlink()
    loop.mkdir()
    (loop / "x.yaml").write_text(pod_text("x"))
    survey = surveyor.look(time.time_ns() + SECOND, 0.0, None)
    assert (held(survey), survey.complete, dict(survey.problems)) == (["x"], True, {})
    assert not survey.files[unreadable].stored


def test_other_kinds_of_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    survey = CountingReader().surveyor(tmp_path).look(time.time_ns() + SECOND, 0.0, None)
    told = {
        os.path.basename(path): (seen.contents.problems[0].message, seen.contents.whole, seen.stamp is None)
        for path, seen in survey.files.items()
    }
    assert told == {
        "broken": ("cannot read it: the target of the symbolic link does not exist", False, True),
        "folder": (
            "subdirectories are ignored; to use this one, add it as a separate path", True, False,
        ),
        "loop": ("cannot read it: Too many levels of symbolic links", False, True),
        "pipe": ("cannot read it: not a regular file", True, False),
    }  # fmt: skip
    assert {seen.contents.problems[0].file for seen in survey.files.values()} == set(survey.files)


def test_files_come_in_the_order_of_the_paths_and_belong_to_the_first(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a/3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(pod_text("p" + name[-1]))
    surveyor = CountingReader().surveyor(tmp_path / "b", tmp_path / "a", tmp_path / "b" / "2")
    survey = surveyor.look(time.time_ns() + SECOND, 0.0, None)
    assert held(survey) == ["p1", "p2", "p3"]
    assert owner_of("/a/b", ("/x", "/a")) == "/a"
    assert [owner_of("/a/b", paths) for paths in (("/a/b", "/a"), ("/",), ())] == ["/a/b", None, None]


def test_a_path_can_be_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))
    survey = look_once(f"{tmp_path}/./", Reader("n1", has_store=True))
    assert (held(survey), survey.complete, survey.again_in) == (["web"], True, None)


def test_a_closed_surveyor_has_no_watch(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    surveyor = CountingReader().surveyor(tmp_path)
    look(surveyor)
    assert surveyor.watch is not None
    surveyor.close()
    surveyor.close()
    assert surveyor.watch is None
    look(surveyor)  # one that was under way ends
    assert (surveyor.watch, os.listdir("/proc/self/fd")) == (None, before)


def test_a_watch_says_what_it_cannot_watch_and_watches_the_rest(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    here, loop = str(tmp_path), str(tmp_path / "loop")
    watch = Watch()
    try:
        passing = [Point(f"{here}/gone", None, here, True), Point(f"{here}/file", None, here, True)]
        assert watch.point_at(passing) is None  # it went between being found and being watched
        trouble = watch.point_at([Point(loop, None, loop, True), Point(here, "web.yaml", f"{here}/web.yaml", True)])
        assert trouble == f"cannot watch {loop}: Too many levels of symbolic links"
        (tmp_path / "other.yaml").write_text("")
        assert not watch.drain(1.0)
        (tmp_path / "web.yaml").write_text("")
        assert watch.drain(1.0)
        assert watch.point_at([]) is None
        watch.drain(1.0)
        (tmp_path / "web.yaml").write_text("x")
        assert (watch.drain(1.0), watch.unfinished(1.0), watch.lost) == (False, {}, False)
    finally:
        watch.close()
        watch.close()


def test_coming_and_going_of_hidden_names_and_folders_counts_and_writes_do_not(tmp_path: Path) -> None:
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
