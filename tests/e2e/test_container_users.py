"""What newer runtimes can do: users of a pod's own (`hostUsers: false`), mounts that are read-only all the way down."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.asking import restarts, said
from tests.e2e.kinds import crio_only
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.objects import config_map
from tests.e2e.scripts import LINGER, sh
from tests.runtimes.cri.crio import crun_features

pytestmark = [pytest.mark.slow, crio_only]

VOLUMES = [{"name": "data", "emptyDir": {}}]
MOUNTS = [{"name": "data", "mountPath": "/data"}]


@pytest.fixture
def users_apart(crio: object) -> None:
    """Skips where containers cannot have users of their own and still use the node's files."""
    extensions = crun_features().get("linux", {}).get("mountExtensions", {})
    if not extensions.get("idmap", {}).get("enabled"):
        pytest.skip("this crun cannot mount with other users: install crun 1.10 or later")


def mapped(text: str) -> tuple[int, int]:
    """The first user of a range, and how many there are, from /proc/self/uid_map."""
    inside, first, length = map(int, text.split())
    assert inside == 0
    return first, length


@pytest.mark.usefixtures("users_apart")
def test_each_pod_has_a_range_of_users_to_itself(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = sh("id -u; cat /proc/self/uid_map /proc/self/gid_map")
        for name in ("one", "two"):
            node.create(pod(name, container=script, hostUsers=False, restartPolicy="Never"))
        node.create(pod("plain", container=script, restartPolicy="Never"))
        ranges = {}
        for name in ("one", "two"):
            uid, users, groups = (await said(node, name)).splitlines()
            assert (uid, users) == ("0", groups)
            ranges[name] = mapped(users)
        assert ranges["one"] != ranges["two"]
        assert all(first >= 65536 and first % 65536 == 0 and length == 65536 for first, length in ranges.values())
        assert mapped((await said(node, "plain")).splitlines()[1]) == (0, 2**32 - 1)

    on_a_node(scenario, tmp_path)


@pytest.mark.usefixtures("users_apart")
def test_who_is_root_inside_is_nobody_on_the_node_but_owns_the_pods_files(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        volumes = [*VOLUMES, {"name": "settings", "configMap": {"name": "settings"}}]
        mounts = [*MOUNTS, {"name": "settings", "mountPath": "/settings"}]
        script = f"cat /settings/colour; echo; echo word >/data/file; stat -c %u /data/file /etc/hosts; {LINGER}"
        node.create(pod("app", container={**sh(script), "volumeMounts": mounts}, volumes=volumes, hostUsers=False))
        await node.until(lambda: node.find("app") is not None and node.log("app").count("\n") >= 3)
        assert node.log("app").split() == ["blue", "0", "0"]
        file = next((node.root / "pods" / node.uid("app")).rglob("file"))
        assert file.stat().st_uid == 0
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in _processes_saying("/settings/colour")}
        assert owners
        assert all(owner >= 65536 for owner in owners)

    on_a_node(scenario, tmp_path)


def _processes_saying(word: str) -> Iterator[int]:
    """Shells whose script has a word in it."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sh" and word.encode() in b" ".join(words):
            yield int(name)


@pytest.mark.usefixtures("users_apart")
def test_another_agent_keeps_the_range_and_runs_the_next_container_in_it(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "cat /proc/self/uid_map; [ -e /data/again ] || { touch /data/again; sleep 3; exit 1; }; sleep 1000"
        fields = {**sh(script), "volumeMounts": MOUNTS}
        node.create(pod("app", container=fields, volumes=VOLUMES, hostUsers=False))
        await node.until_ready("app")
        before = node.log("app")
        await node.restarted()
        await node.until(lambda: restarts(node) == 1 and node.is_ready("app"))
        assert node.log("app", attempt=1) == before
        node.create(pod("other", command=("cat", "/proc/self/uid_map"), hostUsers=False, restartPolicy="Never"))
        assert mapped(await said(node, "other")) != mapped(before)

    on_a_node(scenario, tmp_path)


MODES = {
    "as usual, what is mounted below can be written to": (None, "written"),
    "below can be written to": ("Disabled", "written"),
    "nothing can be written to": ("Enabled", "no"),
    "nothing can be written to, where that can be had": ("IfPossible", "no"),
}


@pytest.mark.parametrize("mode, expected", MODES.values(), ids=MODES.keys())
def test_how_far_down_a_read_only_mount_is_so(
    mode: str | None, expected: str, on_a_node: OnANode, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        mount = {"name": "tree", "mountPath": "/tree", "readOnly": True, "recursiveReadOnly": mode}
        script = sh("touch /tree/top && echo top; touch /tree/below/file && echo written || echo no")
        volumes = [{"name": "tree", "hostPath": {"path": str(tree)}}]
        node.create(pod("app", container={**script, "volumeMounts": [mount]}, volumes=volumes, restartPolicy="Never"))
        heard = (await said(node)).splitlines()
        assert [line for line in heard if not line.startswith("touch:")] == [expected]

    if not crun_features():
        pytest.skip("this crun does not say whether it can mount so: install crun 1.10 or later")
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "below", tree / "below"], check=True)
    try:
        on_a_node(scenario, tmp_path / "node")
    finally:
        subprocess.run(["umount", "-l", tree / "below"], check=True)
