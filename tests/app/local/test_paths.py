"""Default paths of root and socket: for root, for other users, and with environment variables."""

import os
import pwd
from pathlib import Path

import pytest

from podkeeper.app.local.paths import default_root, default_socket, path_length_error, socket_for

HOME = {"HOME": "/home/ann"}
ACCOUNT = pwd.getpwuid(os.geteuid()).pw_dir
CASES: dict[str, tuple[dict[str, str], bool, str, str]] = {
    "root": (HOME, True, "/var/lib/podkeeper", "/run/podkeeper/podkeeper.sock"),
    "a user without a session": (
        HOME,
        False,
        "/home/ann/.local/state/podkeeper",
        "/home/ann/.local/state/podkeeper/podkeeper.sock",
    ),
    "a user whose session has ended": (
        HOME | {"XDG_STATE_HOME": "/state", "XDG_RUNTIME_DIR": "/nowhere/7"},
        False,
        "/state/podkeeper",
        "/state/podkeeper/podkeeper.sock",
    ),
    "a user without variables": (
        {},
        False,
        f"{ACCOUNT}/.local/state/podkeeper",
        f"{ACCOUNT}/.local/state/podkeeper/podkeeper.sock",
    ),
    "relative paths are ignored": (
        HOME | {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"},
        False,
        "/home/ann/.local/state/podkeeper",
        "/home/ann/.local/state/podkeeper/podkeeper.sock",
    ),
    "the socket is set": (HOME | {"PODKEEPER_SOCKET": "/tmp/s"}, True, "/var/lib/podkeeper", "/tmp/s"),
}


@pytest.mark.parametrize("environment, is_root, root, socket", CASES.values(), ids=CASES.keys())
def test_default_paths(environment: dict[str, str], is_root: bool, root: str, socket: str) -> None:
    assert default_root(environment, is_root=is_root) == Path(root)
    assert default_socket(environment, is_root=is_root) == Path(socket)
    assert socket_for(Path(root), environment, is_root=is_root) == Path(socket)


def test_the_socket_is_in_the_runtime_directory_of_a_session(tmp_path: Path) -> None:
    environment = HOME | {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert default_socket(environment, is_root=False) == tmp_path / "podkeeper" / "podkeeper.sock"


def test_the_runtime_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    theirs = Path("/")
    if os.geteuid() == 0:
        theirs = tmp_path / "run"
        theirs.mkdir()
        os.chown(theirs, 65534, -1)
    environment = HOME | {"XDG_RUNTIME_DIR": str(theirs)}
    assert default_socket(environment, is_root=False) == Path("/home/ann/.local/state/podkeeper/podkeeper.sock")


def test_the_socket_is_in_a_non_default_root() -> None:
    assert socket_for(Path("/elsewhere"), HOME, is_root=True) == Path("/elsewhere/podkeeper.sock")


def test_a_path_that_is_too_long_for_a_socket_is_an_error() -> None:
    assert path_length_error(Path("/run/s")) == ""
    assert path_length_error(Path("/" + "x" * 106)) == ""
    assert "--socket" in path_length_error(Path("/" + "x" * 107))
    assert "has 109 bytes" in path_length_error(Path("/" + "ü" * 54))
