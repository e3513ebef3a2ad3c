"""Where an agent keeps its things: as root, as an ordinary user, and as told."""

from pathlib import Path

import pytest

from podkeeper.app.local.places import default_root, default_socket, socket_for, too_long

HOME = {"HOME": "/home/ann"}
CASES: dict[str, tuple[dict[str, str], bool, str, str]] = {
    "root": (HOME, True, "/var/lib/podkeeper", "/run/podkeeper/podkeeper.sock"),
    "a user without a session": (
        HOME,
        False,
        "/home/ann/.local/state/podkeeper",
        "/home/ann/.local/state/podkeeper/podkeeper.sock",
    ),
    "a user with one": (
        HOME | {"XDG_STATE_HOME": "/state", "XDG_RUNTIME_DIR": "/run/user/7"},
        False,
        "/state/podkeeper",
        "/run/user/7/podkeeper/podkeeper.sock",
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


def test_an_agent_with_a_root_of_its_own_listens_there() -> None:
    assert socket_for(Path("/elsewhere"), HOME, is_root=True) == Path("/elsewhere/podkeeper.sock")


def test_a_path_that_the_kernel_does_not_take_is_named() -> None:
    assert too_long(Path("/run/s")) == ""
    assert "--socket" in too_long(Path("/" + "x" * 120))
