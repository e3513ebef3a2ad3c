"""The node's own docker configuration: where it is looked for, and how long it is believed."""

import asyncio
import json
from pathlib import Path

import pytest

from podkeeper.host.clock import SystemClock
from podkeeper.host.docker_config import LIFETIME_SECONDS, NodeDockerConfig, usual_places

NEWER = json.dumps({"auths": {"reg.test": {"username": "newer"}}})
OLDER = json.dumps({"reg.test": {"username": "older"}})


class Clock(SystemClock):
    """A clock that is set by hand: files are read by a real thread."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def found(*places: Path) -> list[str]:
    return list(asyncio.run(NodeDockerConfig(places, Clock()).configs()))


def test_the_usual_places_begin_in_the_agents_root_and_end_with_the_older_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert [str(place) for place in usual_places(Path("/agent"))] == [
        *("/agent/config.json", "/home/somebody/.docker/config.json", "/.docker/config.json"),
        *("/agent/.dockercfg", "/home/somebody/.dockercfg", "/.dockercfg"),
    ]


def test_the_first_that_can_be_read_counts_alone(tmp_path: Path) -> None:
    newer, older = tmp_path / "config.json", tmp_path / ".dockercfg"
    assert found(newer, older) == []
    older.write_text(OLDER)
    assert found(newer, older) == [OLDER]
    newer.write_text(NEWER)
    assert found(newer, older) == [NEWER]


PASSED_OVER = {
    "no JSON": b"{",
    "no text": b"\xff",
    "a bad entry": json.dumps({"auths": {"reg.test": {"auth": "%"}}}).encode(),
    "other settings of docker's": json.dumps({"credsStore": "pass", "psFormat": "table"}).encode(),
}


@pytest.mark.parametrize("content", PASSED_OVER.values(), ids=PASSED_OVER.keys())
def test_what_is_none_is_passed_over(content: bytes, tmp_path: Path) -> None:
    newer, older = tmp_path / "config.json", tmp_path / ".dockercfg"
    newer.write_bytes(content)
    older.write_text(OLDER)
    assert found(newer, older) == [OLDER]


def test_a_directory_in_its_place_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert found(tmp_path / "config.json") == []


def test_a_new_configuration_counts_after_five_minutes(tmp_path: Path) -> None:
    place, clock = tmp_path / "config.json", Clock()
    place.write_text(NEWER)
    node = NodeDockerConfig([place], clock)

    async def ask() -> list[str]:
        return list(await node.configs())

    assert asyncio.run(ask()) == [NEWER]
    changed = NEWER.replace("newer", "newest")
    place.write_text(changed)
    clock.at = LIFETIME_SECONDS - 1
    assert asyncio.run(ask()) == [NEWER]
    clock.at = LIFETIME_SECONDS
    assert asyncio.run(ask()) == [changed]
    place.unlink()
    clock.at = 2 * LIFETIME_SECONDS
    assert asyncio.run(ask()) == []
