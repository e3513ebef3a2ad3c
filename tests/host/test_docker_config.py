"""The Docker configuration of the node: search order and caching."""

import asyncio
import json
from pathlib import Path

import pytest

from podkeeper.host.clock import SystemClock
from podkeeper.host.docker_config import LIFETIME_SECONDS, NodeDockerConfig, default_paths

NEWER = json.dumps({"auths": {"reg.test": {"username": "newer"}}})
OLDER = json.dumps({"reg.test": {"username": "older"}})


class ManualClock(SystemClock):
    """A clock that the test sets, because a real thread reads the files."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def found(*paths: Path) -> list[str]:
    return list(asyncio.run(NodeDockerConfig(paths, ManualClock()).configs()))


def test_the_default_paths_begin_in_the_state_directory_and_end_with_dockercfg(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    assert [str(path) for path in default_paths(Path("/agent"))] == [
        *("/agent/config.json", "/home/user/.docker/config.json", "/.docker/config.json"),
        *("/agent/.dockercfg", "/home/user/.dockercfg", "/.dockercfg"),
    ]


def test_only_the_first_readable_file_is_used(tmp_path: Path) -> None:
    newer, older = tmp_path / "config.json", tmp_path / ".dockercfg"
    assert found(newer, older) == []
    older.write_text(OLDER)
    assert found(newer, older) == [OLDER]
    newer.write_text(NEWER)
    assert found(newer, older) == [NEWER]


IGNORED = {
    "not JSON": b"{",
    "not UTF-8": b"\xff",
    "an invalid entry": json.dumps({"auths": {"reg.test": {"auth": "%"}}}).encode(),
    "only other settings": json.dumps({"credsStore": "pass", "psFormat": "table"}).encode(),
}


@pytest.mark.parametrize("content", IGNORED.values(), ids=IGNORED.keys())
def test_an_unusable_file_is_ignored(content: bytes, tmp_path: Path) -> None:
    newer, older = tmp_path / "config.json", tmp_path / ".dockercfg"
    newer.write_bytes(content)
    older.write_text(OLDER)
    assert found(newer, older) == [OLDER]


def test_a_directory_instead_of_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert found(tmp_path / "config.json") == []


def test_a_new_configuration_is_used_after_five_minutes(tmp_path: Path) -> None:
    path, clock = tmp_path / "config.json", ManualClock()
    path.write_text(NEWER)
    node = NodeDockerConfig([path], clock)

    async def configs() -> list[str]:
        return list(await node.configs())

    assert asyncio.run(configs()) == [NEWER]
    changed = NEWER.replace("newer", "newest")
    path.write_text(changed)
    clock.at = LIFETIME_SECONDS - 1
    assert asyncio.run(configs()) == [NEWER]
    clock.at = LIFETIME_SECONDS
    assert asyncio.run(configs()) == [changed]
    path.unlink()
    clock.at = 2 * LIFETIME_SECONDS
    assert asyncio.run(configs()) == []
