"""Where an agent keeps its things: as root, as an ordinary user, and as told."""

import os
import pwd
from pathlib import Path

import pytest

from podkeeper.app.local.places import default_root, default_socket, socket_for, too_long

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
    "a user whose session is over": (
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
    "relative places do not count": (
        HOME | {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"},
        False,
        "/home/ann/.local/state/podkeeper",
        "/home/ann/.local/state/podkeeper/podkeeper.sock",
    ),
    "the socket is named": (HOME | {"PODKEEPER_SOCKET": "/tmp/s"}, True, "/var/lib/podkeeper", "/tmp/s"),
}


@pytest.mark.parametrize("environment, is_root, root, socket", CASES.values(), ids=CASES.keys())
def test_places(environment: dict[str, str], is_root: bool, root: str, socket: str) -> None:
    assert default_root(environment, is_root=is_root) == Path(root)
    assert default_socket(environment, is_root=is_root) == Path(socket)
    assert socket_for(Path(root), environment, is_root=is_root) == Path(socket)


def test_a_user_with_a_session_has_the_socket_there(tmp_path: Path) -> None:
    environment = HOME | {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert default_socket(environment, is_root=False) == tmp_path / "podkeeper" / "podkeeper.sock"


def test_the_session_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    theirs = Path("/")
    if os.geteuid() == 0:
        theirs = tmp_path / "run"
        theirs.mkdir()
        os.chown(theirs, 65534, -1)
    environment = HOME | {"XDG_RUNTIME_DIR": str(theirs)}
    assert default_socket(environment, is_root=False) == Path("/home/ann/.local/state/podkeeper/podkeeper.sock")


def test_an_agent_with_a_root_of_its_own_listens_there() -> None:
    assert socket_for(Path("/elsewhere"), HOME, is_root=True) == Path("/elsewhere/podkeeper.sock")


def test_a_path_that_the_kernel_does_not_take_is_named() -> None:
    assert too_long(Path("/run/s")) == ""
    assert "--socket" in too_long(Path("/" + "x" * 120))
