"""User ranges of pods: unique, and stored on disk."""

import asyncio
import json
from pathlib import Path

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.runtimes.cri.requests.node import IdRange
from podkeeper.runtimes.cri.user_ranges import UserRanges


def range_of(root: Path, uid: str, last: int = 2**32 - 1) -> IdRange:
    return asyncio.run(UserRanges(str(root), last=last).range_of(uid))


def test_each_pod_has_and_keeps_its_own_range(tmp_path: Path) -> None:
    assert range_of(tmp_path, "a") == IdRange(65536, 65536)
    assert range_of(tmp_path, "b") == IdRange(131072, 65536)
    assert range_of(tmp_path, "a") == IdRange(65536, 65536)  # after a restart of the agent
    assert json.loads((tmp_path / "b" / "userns").read_text()) == {
        "uidMappings": [{"hostId": 131072, "containerId": 0, "length": 65536}],
        "gidMappings": [{"hostId": 131072, "containerId": 0, "length": 65536}],
    }
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["userns"]


def test_concurrent_requests_get_different_ranges(tmp_path: Path) -> None:
    async def scenario() -> list[IdRange]:
        ranges = UserRanges(str(tmp_path))
        return list(await asyncio.gather(*(ranges.range_of(f"uid-{n}") for n in range(20))))

    assert len(set(asyncio.run(scenario()))) == 20


def test_a_range_is_free_after_the_pod_directory_is_removed(tmp_path: Path) -> None:
    range_of(tmp_path, "a")
    range_of(tmp_path, "b")
    (tmp_path / "a" / "userns").unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / "stray").write_text("no pod")
    assert range_of(tmp_path, "c") == IdRange(65536, 65536)


def test_no_range_is_left(tmp_path: Path) -> None:
    assert range_of(tmp_path, "a", last=131071) == IdRange(65536, 65536)
    with pytest.raises(NotConfigurable, match="could not find an empty slot"):
        range_of(tmp_path, "b", last=131071)


def mapping(first: int = 65536, inside: int = 0, length: int = 65536) -> dict[str, int]:
    return {"hostId": first, "containerId": inside, "length": length}


BROKEN = {
    "no JSON": "{",
    "too deep": '{"x": ' + "[" * 2000,
    "no mapping": '{"uidMappings":[],"gidMappings":[]}',
    "not the same": json.dumps({"uidMappings": [mapping()], "gidMappings": [mapping(131072)]}),
    "the node's own users": json.dumps({"uidMappings": [mapping(0)], "gidMappings": [mapping(0)]}),
    "no root": json.dumps({"uidMappings": [mapping(inside=1)], "gidMappings": [mapping(inside=1)]}),
    "too many": json.dumps({"uidMappings": [mapping(length=99999)], "gidMappings": [mapping(length=99999)]}),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_no_range_is_allocated_while_a_file_is_unreadable(text: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "userns").write_text(text)
    for uid in ("a", "b"):
        with pytest.raises(NotConfigurable, match=f"invalid user namespace mappings file {tmp_path}/a/userns"):
            range_of(tmp_path, uid)


def test_a_missing_pods_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotConfigurable, match="create user namespace: no such file or directory"):
        range_of(tmp_path / "nowhere", "a")
