"""User namespaces and subordinate ids."""

import os
from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux import idmap, libc
from tests.runtimes.process.jail_harness import KeeperFailed, in_keeper

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces and become another user")


def test_the_primary_group_comes_from_the_hosts_passwd_file() -> None:
    entries = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    for entry in entries[:5]:
        assert idmap.primary_group(int(entry[2])) == int(entry[3])
    assert idmap.primary_group(4_000_000) == 0


@needs_root
def test_without_newuidmap_and_newgidmap_there_are_no_subordinate_ids(tmp_path: Path) -> None:
    def action() -> Any:
        os.environ["PATH"] = str(tmp_path)
        return idmap.subordinate_ids()

    assert in_keeper(action) == (idmap.NO_IDS, idmap.NO_IDS)


@pytest.mark.parametrize("statuses", [(1, 0), (0, 1)])
def test_a_failure_of_newuidmap_or_newgidmap_is_an_error(tmp_path: Path, statuses: tuple[int, int]) -> None:
    for name, status in zip(("newuidmap", "newgidmap"), statuses, strict=True):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)

    def action() -> None:
        os.environ["PATH"] = f"{tmp_path}:/usr/bin:/bin"
        idmap.enter_user_namespace((100000, 65536), (200000, 65536))

    with pytest.raises(KeeperFailed, match="newuidmap or newgidmap failed"):
        in_keeper(action)


SUBORDINATE: dict[str, tuple[str, str, Any]] = {
    "the longest range, by name or number": (
        "root:100:5\n0:1000:70\nother:5:999\nbroken\nroot:1:2:3\n",
        "root:7:8\n",
        ((1000, 70), (7, 8)),
    ),
    "no groups": ("root:100:5\n", "other:7:8\n", (idmap.NO_IDS, idmap.NO_IDS)),
    "an empty range": ("root:100:0\n", "root:7:8\n", (idmap.NO_IDS, idmap.NO_IDS)),
}


@needs_root
@pytest.mark.parametrize("name", SUBORDINATE)
def test_subordinate_ids_come_from_subuid_and_subgid(tmp_path: Path, name: str) -> None:
    users, groups, expected = SUBORDINATE[name]
    if not (os.path.isfile("/etc/subuid") and os.path.isfile("/etc/subgid")):
        pytest.skip("needs /etc/subuid and /etc/subgid, to put others over them")
    for file, content in (("subuid", users), ("subgid", groups), ("newuidmap", ""), ("newgidmap", "")):
        (tmp_path / file).write_text(content)
        (tmp_path / file).chmod(0o755)

    def action() -> Any:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        for file in ("subuid", "subgid"):
            libc.mount(f"{tmp_path}/{file}", f"/etc/{file}", None, libc.MS_BIND)
        os.environ["PATH"] = f"/nowhere:{tmp_path}"
        return idmap.subordinate_ids()

    assert in_keeper(action) == expected
