"""The whole agent with a containerd that has `SystemdCgroup = true`: slices, limits, adoption, removal."""

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.kubelet_node import needs_kubelet
from tests.e2e.slice_node import PODKEEPER, SliceNode, slice_node
from tests.host import booted
from tests.runtimes.cri import containerd

FULL = {"cpu": "125m", "memory": "64Mi"}
FILES = ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes")


@pytest.fixture(scope="module")
def node() -> Iterator[SliceNode]:
    if (reason := booted.missing() or containerd.missing()) is not None:
        pytest.skip(reason)
    with slice_node() as made:
        yield made


@pytest.mark.slow
def test_pods_of_every_qos_class_have_their_own_slices(node: SliceNode) -> None:
    if node.systemd.version != 1:
        pytest.skip("it reads files of cgroup v1")
    uids = {
        "guaranteed": node.write("guaranteed", {"requests": FULL, "limits": FULL}),
        "burstable": node.write("burstable", {"requests": {"cpu": "250m"}, "limits": {"memory": "32Mi"}}),
        "besteffort": node.write("besteffort", {}),
    }
    units = {name: uid.replace("-", "_") for name, uid in uids.items()}
    top = "/kubepods.slice"
    paths = {
        "guaranteed": f"{top}/kubepods-pod{units['guaranteed']}.slice",
        "burstable": f"{top}/kubepods-burstable.slice/kubepods-burstable-pod{units['burstable']}.slice",
        "besteffort": f"{top}/kubepods-besteffort.slice/kubepods-besteffort-pod{units['besteffort']}.slice",
    }
    node.start()
    node.until(lambda: node.is_ready(*uids))
    first = {name: node.container_id(name) for name in uids}

    # The limits of pods, QoS classes and containers in the kernel.
    assert {name: node.cgroup_file(path, "cpu.shares") for name, path in paths.items()} == {
        "guaranteed": "128",
        "burstable": "256",
        "besteffort": "2",
    }
    assert node.cgroup_file(paths["guaranteed"], "cpu.cfs_quota_us") == "13000"
    assert node.cgroup_file(paths["guaranteed"], "memory.limit_in_bytes") == str(64 << 20)
    assert node.cgroup_file(paths["burstable"], "memory.limit_in_bytes") == str(32 << 20)
    assert node.cgroup_file(f"{top}/kubepods-burstable.slice", "cpu.shares") == "256"
    assert node.cgroup_file(f"{top}/kubepods-besteffort.slice", "cpu.shares") == "2"
    for name, path in paths.items():
        assert node.cgroup_file(path, "pids.max") == "1024"
        scope = f"{path}/cri-containerd-{first[name]}.scope"
        assert (node.systemd.directory("memory", scope) / "cgroup.procs").read_text().split()
        assert node.systemd.run("systemctl", "is-active", path.rpartition("/")[2]).strip() == "active"

    # The agent is killed and systemd re-executes itself: no container is restarted.
    node.end()
    node.systemd.run("systemctl", "daemon-reexec")
    node.start()
    node.until(lambda: node.is_ready(*uids))
    node.systemd.run("systemctl", "daemon-reexec")
    assert {name: node.container_id(name) for name in uids} == first
    assert {node.starts(name) for name in uids} == {1}
    assert node.cgroup_file(paths["guaranteed"], "cpu.cfs_quota_us") == "13000"

    # Removed pods leave no slices in any hierarchy.
    node.remove_manifest("burstable")
    node.until(lambda: not any(units["burstable"] in each for each in node.systemd.slices()))
    assert node.is_ready("guaranteed", "besteffort")
    node.until(lambda: node.cgroup_file(f"{top}/kubepods-burstable.slice", "cpu.shares") == "2")
    node.remove_manifest("guaranteed")
    node.remove_manifest("besteffort")
    node.until(lambda: not any("-pod" in each for each in node.systemd.slices()))
    node.end(signal.SIGTERM)
    assert not any("kubepods" in each for each in node.systemd.slices())
    assert {node.starts(name) for name in uids} == {1}


@pytest.mark.slow
def test_doctor_reports_the_systemd_cgroup_driver(node: SliceNode) -> None:
    output = node.systemd.run(*PODKEEPER, "doctor", "--runtime-endpoint", node.containerd.socket)
    assert "(slices)" in output


@pytest.mark.slow
@needs_kubelet
def test_slices_are_handed_over_between_podkeeper_and_the_kubelet() -> None:
    if (reason := booted.missing() or containerd.missing()) is not None:
        pytest.skip(reason)
    with slice_node() as node:
        burstable = {"requests": {"cpu": "250m"}, "limits": {"memory": "32Mi"}}
        classes = {"guaranteed": {"requests": FULL, "limits": FULL}, "burstable": burstable, "besteffort": {}}
        uids = {name: node.write(name, resources).replace("-", "_") for name, resources in classes.items()}
        top, paths = "/kubepods.slice", [f"/kubepods.slice/kubepods-pod{uids['guaranteed']}.slice"]
        for name in ("burstable", "besteffort"):
            branch = f"{top}/kubepods-{name}.slice"
            paths += [branch, f"{branch}/kubepods-{name}-pod{uids[name]}.slice"]

        def limits() -> dict[tuple[str, str], str]:
            return {(path, file): node.cgroup_file(path, file) for path in paths for file in FILES}

        node.start_kubelet()
        node.until(lambda: node.is_ready(*classes))
        begun = {name: node.container_id(name) for name in classes}
        node.until(
            lambda: node.cgroup_file(f"{top}/kubepods-burstable.slice", "cpu.shares") == "256"
        )  # the kubelet updates it periodically
        slices, cgroup_file = node.systemd.slices(), limits()
        parents = node.cgroup_parents()
        assert parents["burstable"] == paths[2]
        node.end()

        node.start()
        node.until(lambda: node.is_ready(*classes))
        assert limits() == cgroup_file
        node.end()

        node.start()
        uid_of_ours = node.write("ours", burstable)
        node.until(lambda: node.is_ready(*classes, "ours"))
        assert {name: node.container_id(name) for name in classes} == begun
        assert slices < node.systemd.slices()
        ours = node.container_id("ours")
        parent_of_ours = parents["burstable"].replace(uids["burstable"], uid_of_ours.replace("-", "_"))
        assert node.cgroup_parents() == {**parents, "ours": parent_of_ours}
        node.remove_manifest("guaranteed")
        node.until(lambda: len([each for each in node.systemd.slices() if "-pod" in each]) == 3)
        node.end()

        node.start_kubelet()
        node.remove_manifest("besteffort")
        node.until(lambda: len([each for each in node.systemd.slices() if "-pod" in each]) == 2)
        node.until(lambda: node.is_ready("burstable", "ours"))
        assert (node.container_id("burstable"), node.container_id("ours")) == (begun["burstable"], ours)
        assert {node.starts(name) for name in (*classes, "ours")} == {1}
