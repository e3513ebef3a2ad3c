"""Looking at files: what is read again, what the watch tells, and what is done where there is none."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeeper.sources.contents import Reader
from podkeeper.sources.places import points_of
from podkeeper.sources.survey import GONE_SECONDS, Survey, Surveyor
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


def test_where_the_kernel_gives_no_watch_files_are_read_and_it_is_said(tmp_path: Path) -> None:
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
    assert done.stdout.startswith("1 cannot be told of changes:"), done.stderr
    assert "max_user_instances" in done.stdout
