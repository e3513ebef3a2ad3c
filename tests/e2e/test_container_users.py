"""Features of newer runtimes: user namespaces (`hostUsers: false`) and recursive read-only mounts."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.objects import config_map
from tests.e2e.pod_queries import log_after_success, restart_count
from tests.e2e.runtime_kinds import crio_only
from tests.e2e.scripts import LINGER, sh
from tests.runtimes.cri.crio import crun_features

pytestmark = [pytest.mark.slow, crio_only]

VOLUMES = [{"name": "data", "emptyDir": {}}]
MOUNTS = [{"name": "data", "mountPath": "/data"}]


@pytest.fixture
def users_apart(crio: object) -> None:
    """Skip if the runtime cannot combine user namespaces with idmapped mounts."""
    extensions = crun_features().get("linux", {}).get("mountExtensions", {})
    if not extensions.get("idmap", {}).get("enabled"):
        pytest.skip("this crun has no idmapped mounts: install crun 1.10 or later")


def mapped(text: str) -> tuple[int, int]:
    """Parse /proc/self/uid_map and return the first host UID and the length of the range."""
    inside, first, length = map(int, text.split())
    assert inside == 0
    return first, length


@pytest.mark.usefixtures("users_apart")
def test_each_pod_has_its_own_uid_range(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = sh("id -u; cat /proc/self/uid_map /proc/self/gid_map")
        for name in ("one", "two"):
            node.create(pod(name, container=script, hostUsers=False, restartPolicy="Never"))
        node.create(pod("plain", container=script, restartPolicy="Never"))
        ranges = {}
        for name in ("one", "two"):
            uid, users, groups = (await log_after_success(node, name)).splitlines()
            assert (uid, users) == ("0", groups)
            ranges[name] = mapped(users)
        assert ranges["one"] != ranges["two"]
        assert all(first >= 65536 and first % 65536 == 0 and length == 65536 for first, length in ranges.values())
        assert mapped((await log_after_success(node, "plain")).splitlines()[1]) == (0, 2**32 - 1)

    run_on_node(scenario, tmp_path)


@pytest.mark.usefixtures("users_apart")
def test_container_root_is_unprivileged_on_the_node_and_owns_the_pod_files(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
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

    run_on_node(scenario, tmp_path)


def _processes_saying(word: str) -> Iterator[int]:
    """Return the PIDs of shells whose script contains a word."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sh" and word.encode() in b" ".join(words):
            yield int(name)


@pytest.mark.usefixtures("users_apart")
def test_a_restarted_agent_keeps_the_uid_range(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "cat /proc/self/uid_map; [ -e /data/again ] || { touch /data/again; sleep 3; exit 1; }; sleep 1000"
        fields = {**sh(script), "volumeMounts": MOUNTS}
        node.create(pod("app", container=fields, volumes=VOLUMES, hostUsers=False))
        await node.until_ready("app")
        before = node.log("app")
        await node.restart_agent()
        await node.until(lambda: restart_count(node) == 1 and node.is_ready("app"))
        assert node.log("app", attempt=1) == before
        node.create(pod("other", command=("cat", "/proc/self/uid_map"), hostUsers=False, restartPolicy="Never"))
        assert mapped(await log_after_success(node, "other")) != mapped(before)

    run_on_node(scenario, tmp_path)


MODES = {
    "submounts are writable by default": (None, "written"),
    "submounts are writable with Disabled": ("Disabled", "written"),
    "submounts are read-only with Enabled": ("Enabled", "no"),
    "submounts are read-only with IfPossible, if supported": ("IfPossible", "no"),
}


@pytest.mark.parametrize("mode, expected", MODES.values(), ids=MODES.keys())
def test_recursive_read_only_mounts(
    mode: str | None, expected: str, run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        mount = {"name": "tree", "mountPath": "/tree", "readOnly": True, "recursiveReadOnly": mode}
        script = sh("touch /tree/top && echo top; touch /tree/below/file && echo written || echo no")
        volumes = [{"name": "tree", "hostPath": {"path": str(tree)}}]
        node.create(pod("app", container={**script, "volumeMounts": [mount]}, volumes=volumes, restartPolicy="Never"))
        lines = (await log_after_success(node)).splitlines()
        assert [line for line in lines if not line.startswith("touch:")] == [expected]

    if not crun_features():
        pytest.skip("this crun does not report its mount options: install crun 1.10 or later")
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "below", tree / "below"], check=True)
    try:
        run_on_node(scenario, tmp_path / "node")
    finally:
        subprocess.run(["umount", "-l", tree / "below"], check=True)
