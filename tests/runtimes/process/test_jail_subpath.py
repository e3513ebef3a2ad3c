"""A part of a volume in a container: found, or made, and no link that a container planted leads out of the volume."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from podkeeper.runtimes.process.keeper.launch import Bind, LaunchError
from podkeeper.runtimes.process.keeper.subpath import open_subpath
from tests.runtimes.process.jailing import Broken, World, state_directory, world


@pytest.fixture(params=["root", "user"])
def here(request: pytest.FixtureRequest) -> Iterator[World]:
    with state_directory(request.param) as state:
        made = world(request.param, state)
        made.make("volume")
        made.make("volume/dir/file", "inside")
        made.make("outside")
        made.make("outside/file", "secret")
        yield made


def bind(here: World, sub_path: str, **options: Any) -> tuple[Bind, ...]:
    return (Bind(f"{here.state}/volume", "/data", sub_path=sub_path, **options),)


FOUND = {
    "a directory": ("dir", "cat /data/file"),
    "a file": ("dir/file", "cat /data"),
    "a path with idle dots and slashes": ("./dir//.", "cat /data/file"),
    "a link to a neighbour": ("link", "cat /data/file"),
    "a link that goes up and stays inside": ("dir/up/dir/file", "cat /data"),
}


@pytest.mark.parametrize("sub_path, script", FOUND.values(), ids=FOUND.keys())
def test_what_is_there_appears(here: World, sub_path: str, script: str) -> None:
    os.symlink("dir", f"{here.state}/volume/link")
    os.symlink("../", f"{here.state}/volume/dir/up")
    assert here.run(script, binds=bind(here, sub_path)) == (0, "inside")


def test_what_is_missing_is_made_with_the_mode_of_the_volume(here: World) -> None:
    os.chmod(f"{here.state}/volume", 0o1777)
    assert here.run("echo hi > /data/x", binds=bind(here, "new/deep")) == (0, "")
    assert os.stat(f"{here.state}/volume/new/deep").st_mode & 0o7777 == 0o1777
    assert os.listdir(f"{here.state}/volume/new/deep") == ["x"]


def test_a_part_can_be_read_only(here: World) -> None:
    code, output = here.run("touch /data/x", binds=bind(here, "dir", read_only=True))
    assert (code, "Read-only file system" in output) == (1, True)


LEADING_OUT = {
    "an absolute link": ("/etc", "link"),
    "a link out of the volume": ("../outside", "link"),
    "a link far out of the volume": ("dir/../../../../../../../../etc", "link"),
    "a link to itself": ("link", "link"),
    "what lies behind a link": ("../outside", "link/file"),
    "what would be made behind a link": ("../outside", "link/new"),
}


@pytest.mark.parametrize("target, sub_path", LEADING_OUT.values(), ids=LEADING_OUT.keys())
def test_what_leads_out_is_refused(here: World, target: str, sub_path: str) -> None:
    os.symlink(target, f"{here.state}/volume/link")
    with pytest.raises(Broken, match=f'subpath "{sub_path}" not within volume path "{here.state}/volume"'):
        here.run("cat /data/file", binds=bind(here, sub_path))
    assert os.listdir(f"{here.state}/outside") == ["file"]


@pytest.mark.parametrize("sub_path", ["/etc", "..", "dir/../../outside"])
def test_a_path_that_leads_out_by_its_words_is_refused(here: World, sub_path: str) -> None:
    with pytest.raises(Broken, match="not within volume path"):
        here.run("cat /data/file", binds=bind(here, sub_path))


def test_a_file_has_no_parts(here: World) -> None:
    with pytest.raises(Broken, match=r"cannot mount .*/dir/file/x at /data: not a directory"):
        here.run("true", binds=bind(here, "dir/file/x"))


def test_a_link_that_is_planted_meanwhile_never_leads_out(here: World) -> None:
    volume, outside, done = f"{here.state}/volume", f"{here.state}/outside", threading.Event()

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):
                os.rmdir(f"{volume}/x")
            with suppress(OSError):
                os.symlink(outside, f"{volume}/x")
            with suppress(OSError):
                os.unlink(f"{volume}/x")

    attacker = threading.Thread(target=swap)
    attacker.start()
    found = []
    try:
        for _ in range(300):
            with suppress(LaunchError, OSError):
                held = open_subpath(volume, "x/y")
                found.append(os.readlink(f"/proc/self/fd/{held}"))
                os.close(held)
    finally:
        done.set()
        attacker.join()
    assert [path for path in found if "outside" in path] == []
    assert os.listdir(outside) == ["file"]
