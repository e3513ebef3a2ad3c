"""Scenarios of pod slices that run inside a booted systemd (`tests/host/booted.py`), on its private socket.

Each scenario has its own root and leaves nothing behind.
"""

import asyncio
import os
import subprocess
import uuid
from collections.abc import Callable
from typing import Any

from podkeeper.host.slices import Slices, open_slices
from podkeeper.host.systemd import Systemd
from podkeeper.linux import cgroup
from podkeeper.linux.cgroup_support import CgroupSupport
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.cgroup.slice_limits import Property
from podkeeper.testing.contracts.cgroups import CGROUPS
from tests.host.pods import BEST_EFFORT, BURSTABLE, GUARANTEED, pod_with
from tests.host.slice_harness import PIDS, eventually, slice_harness, start_scope, systemctl

SLEEP = ("sleep", "1000")


async def contract(name: str) -> None:
    """One scenario of the contract."""
    (scenario,) = (each for each in CGROUPS.scenarios if each.__name__ == name)
    async with slice_harness() as here:
        await scenario(here.slices)


# ---- limits ----------------------------------------------------------------------------------


async def the_kernel_has_the_limits_of_each_qos_class() -> None:
    async with slice_harness() as here:
        parents = [await here.slices.ensure(each) for each in (GUARANTEED, BURSTABLE, BEST_EFFORT)]
        top = f"/{here.root}.slice"
        assert parents == [
            f"{top}/{here.unit(GUARANTEED)}",
            f"{top}/{here.root}-burstable.slice/{here.unit(BURSTABLE, 'burstable')}",
            f"{top}/{here.root}-besteffort.slice/{here.unit(BEST_EFFORT, 'besteffort')}",
        ]
        expected = {
            parents[0]: ("512", "50000", str(64 << 20)),
            parents[1]: ("256", "-1", str(64 << 20)),
            parents[2]: ("2", "-1", None),
        }
        for _ in range(2):
            for parent, (shares, quota, memory) in expected.items():
                assert here.value_of(parent, "cpu.shares") == shares
                assert here.value_of(parent, "cpu.cfs_quota_us") == quota
                assert here.value_of(parent, "pids.max") == str(PIDS)
                assert memory is None or here.value_of(parent, "memory.limit_in_bytes") == memory
            assert here.value_of(f"{top}/{here.root}-burstable.slice", "cpu.shares") == "256"
            assert here.value_of(f"{top}/{here.root}-besteffort.slice", "cpu.shares") == "2"
            systemctl("daemon-reload")  # after which systemd may write its own values


async def systemd_gets_the_limits_of_version_2() -> None:
    """On a hierarchy without controllers, so only the properties of systemd can be checked."""
    (tree,) = (each for each in cgroup.hierarchies() if each.name == "unified")
    base, root = cgroup.cgroup_at({"unified": tree.mount_point}), f"test{uuid.uuid4().hex[:8]}"
    assert base is not None
    units = await Systemd.open(bus="")
    support = CgroupSupport(2, "/", (("unified", tree.mount_point),))
    slices = Slices(units, base, support, (root,), pod_pids_limit=PIDS)
    try:
        await slices.prepare()
        parent = await slices.ensure(GUARANTEED)
        unit = os.path.basename(parent)
        assert os.path.isdir(f"{tree.mount_point}{parent}")

        async def properties(*names: str) -> list[Any]:
            return [await units.property(unit, name, "Slice") for name in names]

        names = ("CPUWeight", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec", "MemoryMax", "TasksMax", "IOAccounting")
        assert await properties(*names) == [20, 500_000, 100_000, 64 << 20, PIDS, True]
        assert await slices.list_pods() == {uid_of(GUARANTEED)}
        await slices.throttle(uid_of(GUARANTEED))
        assert await properties("CPUWeight", "MemoryMax") == [1, 64 << 20]
        await slices.remove(uid_of(GUARANTEED))
        assert not os.path.isdir(f"{tree.mount_point}{parent}")
    finally:
        await slices.close()
    assert not os.path.isdir(f"{tree.mount_point}/{root}.slice")


async def a_quota_is_rounded_up_to_a_whole_percent() -> None:
    async with slice_harness() as here:
        odd = pod_with({"cpu": "125m"}, {"cpu": "125m", "memory": "64Mi"})
        parent = await here.slices.ensure(odd)
        assert here.value_of(parent, "cpu.cfs_quota_us") == "13000"
        unit = os.path.basename(parent)
        assert await here.systemd.property(unit, "CPUQuotaPerSecUSec", "Slice") == 130_000
        systemctl("set-property", "--runtime", unit, "CPUShares=300")  # makes systemd write all values
        await eventually(lambda: here.value_of(parent, "cpu.shares") == "300")
        assert here.value_of(parent, "cpu.cfs_quota_us") == "13000"


async def a_removed_limit_is_reset() -> None:
    async with slice_harness() as here:
        parent = await here.slices.ensure(BURSTABLE)
        changed = pod_with({"cpu": "500m"}, uid=uid_of(BURSTABLE))
        assert await here.slices.ensure(changed) == parent
        systemctl("daemon-reload")
        assert here.value_of(parent, "cpu.shares") == "512"
        assert int(here.value_of(parent, "memory.limit_in_bytes")) > 1 << 60
        assert here.value_of(f"/{here.root}.slice/{here.root}-burstable.slice", "cpu.shares") == "512"
        await here.slices.throttle(uid_of(BURSTABLE))
        assert here.value_of(parent, "cpu.shares") == "2"
        await here.slices.ensure(changed)
        assert here.value_of(parent, "cpu.shares") == "512"


# ---- removing --------------------------------------------------------------------------------


async def removing_a_pod_kills_its_processes() -> None:
    async with slice_harness() as here:
        parent = await here.slices.ensure(BURSTABLE)
        with subprocess.Popen(SLEEP) as process:
            try:
                scope = await start_scope(here.systemd, os.path.basename(parent), process.pid)
                inside = cgroup.find(f"{parent}/{scope}")
                assert inside is not None
                assert process.pid in cgroup.processes(inside)
                await here.slices.remove(uid_of(BURSTABLE))
                assert process.wait(10) == -9
            finally:
                process.kill()
        assert cgroup.find(parent) is None
        assert not await here.systemd.is_active(os.path.basename(parent))
        assert not await here.systemd.is_active(scope)


async def cgroups_of_a_runtime_in_other_hierarchies_are_listed_and_removed() -> None:
    async with slice_harness() as here:
        parent = await here.slices.ensure(BURSTABLE)
        tops = [each.mount_point for each in cgroup.other_hierarchies()]
        assert any("cpuset" in top for top in tops)
        for top in tops:
            os.makedirs(f"{top}{parent}/container.scope", exist_ok=True)
        await here.slices.remove(uid_of(BURSTABLE))
        assert not any(os.path.isdir(f"{top}{parent}") for top in tops)
        for top in tops:
            os.makedirs(f"{top}{parent}", exist_ok=True)
        assert await here.slices.list_pods() == {uid_of(BURSTABLE)}
        await here.slices.remove(uid_of(BURSTABLE))
        assert await here.slices.list_pods() == frozenset()


async def only_slices_of_pods_are_ours() -> None:
    async with slice_harness() as here:
        others = [f"{here.root}-{name}.slice" for name in ("system", "pod", "system-podmore")]
        for unit in others:
            assert await here.systemd.start_transient(unit, [("DefaultDependencies", ("b", False))])
        assert await here.slices.list_pods() == frozenset()
        for uid in ("", "more", "system-podmore", "../system", "one/more", "unknown"):
            await here.slices.remove(PodUID(uid))
        assert all([await here.systemd.is_active(unit) for unit in others])
        await here.slices.close()
        assert all([await here.systemd.is_active(unit) for unit in others])
        systemctl("stop", *others)


async def closing_leaves_the_slices_of_pods() -> None:
    async with slice_harness() as here:
        parent = await here.slices.ensure(BEST_EFFORT)
        again = await open_slices(await Systemd.open(bus=""), (here.root,))
        await again.close()
        assert cgroup.find(parent) is not None
        assert await here.systemd.is_active(os.path.basename(parent))


async def many_pods_are_created_and_removed_at_once() -> None:
    pods = [pod_with({"cpu": "100m"}) for _ in range(20)]
    async with slice_harness() as here:
        parents = await asyncio.gather(*(here.slices.ensure(each) for each in pods))
        assert len(set(parents)) == 20
        assert await here.slices.list_pods() == {uid_of(each) for each in pods}
        branch = f"/{here.root}.slice/{here.root}-burstable.slice"
        assert here.value_of(branch, "cpu.shares") == "2048"
        await asyncio.gather(*(here.slices.remove(uid_of(each)) for each in pods))
        assert await here.slices.list_pods() == frozenset()
        assert here.value_of(branch, "cpu.shares") == "2"


# ---- existing and stopped slices --------------------------------------------------------------


async def a_slice_of_the_kubelet_is_adopted() -> None:
    async with slice_harness() as here:
        unit = here.unit(BURSTABLE, "burstable")
        properties: list[Property] = [
            ("Description", ("s", f"libcontainer container {unit}")),
            ("Wants", ("as", (f"{here.root}-burstable.slice",))),
            ("MemoryAccounting", ("b", True)),
            ("CPUAccounting", ("b", True)),
            ("TasksAccounting", ("b", True)),
            ("DefaultDependencies", ("b", False)),
        ]
        assert await here.systemd.start_transient(unit, properties)
        assert await here.slices.list_pods() == {uid_of(BURSTABLE)}
        with subprocess.Popen(SLEEP) as process:
            try:
                scope = await start_scope(here.systemd, unit, process.pid)
                parent = await here.slices.ensure(BURSTABLE)
                assert os.path.basename(parent) == unit
                assert here.value_of(parent, "memory.limit_in_bytes") == str(64 << 20)
                assert process.poll() is None
                assert await here.systemd.is_active(scope)
            finally:
                process.kill()


async def a_stopped_slice_and_its_parent_are_created_again() -> None:
    async with slice_harness() as here:
        parent = await here.slices.ensure(BEST_EFFORT)
        systemctl("stop", f"{here.root}-besteffort.slice")
        assert not await here.systemd.is_active(os.path.basename(parent))
        assert await here.slices.ensure(BEST_EFFORT) == parent
        assert await here.systemd.is_active(os.path.basename(parent))
        assert here.value_of(parent, "pids.max") == str(PIDS)
        assert here.value_of(f"/{here.root}.slice/{here.root}-besteffort.slice", "cpu.shares") == "2"


async def an_existing_stopped_slice_is_started() -> None:
    async with slice_harness() as here:
        parent = await here.slices.ensure(GUARANTEED)
        unit, service = os.path.basename(parent), f"test-{uuid.uuid4().hex}.service"
        failing: Any = [
            ("Slice", ("s", unit)),
            ("DefaultDependencies", ("b", False)),
            ("ExecStart", ("a(sasb)", [("/bin/false", ["/bin/false"], False)])),
        ]
        assert await here.systemd.start_transient(service, failing)
        async with asyncio.timeout(10):
            while await here.systemd.property(service, "ActiveState") != "failed":
                await asyncio.sleep(0.01)
        systemctl("stop", unit)
        assert not await here.systemd.is_active(unit)
        assert await here.slices.ensure(GUARANTEED) == parent
        assert await here.systemd.is_active(unit)
        assert here.value_of(parent, "memory.limit_in_bytes") == str(64 << 20)
        systemctl("reset-failed", service)


async def systemd_may_reexecute_at_any_moment() -> None:
    pods = [pod_with({"cpu": "100m"}) for _ in range(30)]
    async with slice_harness() as here:
        before = await here.slices.ensure(BURSTABLE)

        async def reexecute() -> None:
            for verb in ("daemon-reexec", "daemon-reload", "daemon-reexec"):
                await asyncio.to_thread(systemctl, verb)

        async def create_and_remove(each: Pod) -> None:
            for _ in range(3):
                await here.slices.ensure(each)
                await here.slices.remove(uid_of(each))
            await here.slices.ensure(each)

        await asyncio.gather(reexecute(), *map(create_and_remove, pods))
        assert await here.slices.list_pods() == {uid_of(each) for each in (BURSTABLE, *pods)}
        assert here.value_of(before, "memory.limit_in_bytes") == str(64 << 20)
        for each in pods:
            assert await here.systemd.is_active(here.unit(each, "burstable"))


SCENARIOS: tuple[Callable[[], Any], ...] = (
    the_kernel_has_the_limits_of_each_qos_class,
    a_quota_is_rounded_up_to_a_whole_percent,
    a_removed_limit_is_reset,
    removing_a_pod_kills_its_processes,
    cgroups_of_a_runtime_in_other_hierarchies_are_listed_and_removed,
    only_slices_of_pods_are_ours,
    closing_leaves_the_slices_of_pods,
    many_pods_are_created_and_removed_at_once,
    a_slice_of_the_kubelet_is_adopted,
    a_stopped_slice_and_its_parent_are_created_again,
    an_existing_stopped_slice_is_started,
    systemd_may_reexecute_at_any_moment,
)
