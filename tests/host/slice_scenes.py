"""What happens to pods' slices, played inside of a booted systemd (`tests/host/booted.py`), on its own socket.

Each scene has a root of its own, and leaves nothing.
"""

import asyncio
import os
import subprocess
import uuid
from collections.abc import Callable
from typing import Any

from podkeeper.host.cgroup_survey import Offer
from podkeeper.host.slices import Slices, open_slices
from podkeeper.host.systemd import Systemd
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.slice_limits import Property
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.testing.contracts.cgroups import CGROUPS
from tests.host.pods import BEST_EFFORT, BURSTABLE, GUARANTEED, pod, uid_of
from tests.host.slice_stage import PIDS, begun_scope, eventually, stage, systemctl

SLEEP = ("sleep", "1000")


async def promise(name: str) -> None:
    """One promise of the contract."""
    (scenario,) = (each for each in CGROUPS.scenarios if each.__name__ == name)
    async with stage() as here:
        await scenario(here.slices)


# ---- limits ----------------------------------------------------------------------------------


async def the_kernel_has_the_limits_of_each_class() -> None:
    async with stage() as here:
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
                assert here.told(parent, "cpu.shares") == shares
                assert here.told(parent, "cpu.cfs_quota_us") == quota
                assert here.told(parent, "pids.max") == str(PIDS)
                assert memory is None or here.told(parent, "memory.limit_in_bytes") == memory
            assert here.told(f"{top}/{here.root}-burstable.slice", "cpu.shares") == "256"
            assert here.told(f"{top}/{here.root}-besteffort.slice", "cpu.shares") == "2"
            systemctl("daemon-reload")  # after which systemd may write what it thinks is right


async def systemd_is_told_what_version_2_calls_the_limits() -> None:
    """On a tree without controllers: so nothing but what systemd itself says can be looked at."""
    (tree,) = (each for each in cgroup.hierarchies() if each.name == "unified")
    base, root = cgroup.place_at({"unified": tree.mount_point}), f"test{uuid.uuid4().hex[:8]}"
    assert base is not None
    units = await Systemd.open(bus="")
    slices = Slices(units, cgroup, base, Offer(2, "/", (("unified", tree.mount_point),)), (root,), pod_pids_limit=PIDS)
    try:
        await slices.prepare()
        parent = await slices.ensure(GUARANTEED)
        unit = os.path.basename(parent)
        assert os.path.isdir(f"{tree.mount_point}{parent}")

        async def said(*names: str) -> list[Any]:
            return [await units.property(unit, name, "Slice") for name in names]

        names = ("CPUWeight", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec", "MemoryMax", "TasksMax", "IOAccounting")
        assert await said(*names) == [20, 500_000, 100_000, 64 << 20, PIDS, True]
        assert await slices.list_pods() == {uid_of(GUARANTEED)}
        await slices.throttle(uid_of(GUARANTEED))
        assert await said("CPUWeight", "MemoryMax") == [1, 64 << 20]
        await slices.remove(uid_of(GUARANTEED))
        assert not os.path.isdir(f"{tree.mount_point}{parent}")
    finally:
        await slices.close()
    assert not os.path.isdir(f"{tree.mount_point}/{root}.slice")


async def a_quota_between_two_percent_is_rounded_up_by_both() -> None:
    async with stage() as here:
        odd = pod({"cpu": "125m"}, {"cpu": "125m", "memory": "64Mi"})
        parent = await here.slices.ensure(odd)
        assert here.told(parent, "cpu.cfs_quota_us") == "13000"
        unit = os.path.basename(parent)
        assert await here.systemd.property(unit, "CPUQuotaPerSecUSec", "Slice") == 130_000
        systemctl("set-property", "--runtime", unit, "CPUShares=300")  # lets systemd write all it knows
        await eventually(lambda: here.told(parent, "cpu.shares") == "300")
        assert here.told(parent, "cpu.cfs_quota_us") == "13000"


async def a_limit_that_is_no_more_is_taken_back() -> None:
    async with stage() as here:
        parent = await here.slices.ensure(BURSTABLE)
        changed = pod({"cpu": "500m"}, uid=uid_of(BURSTABLE))
        assert await here.slices.ensure(changed) == parent
        systemctl("daemon-reload")
        assert here.told(parent, "cpu.shares") == "512"
        assert int(here.told(parent, "memory.limit_in_bytes")) > 1 << 60
        assert here.told(f"/{here.root}.slice/{here.root}-burstable.slice", "cpu.shares") == "512"
        await here.slices.throttle(uid_of(BURSTABLE))
        assert here.told(parent, "cpu.shares") == "2"
        await here.slices.ensure(changed)
        assert here.told(parent, "cpu.shares") == "512"


# ---- removing --------------------------------------------------------------------------------


async def removing_a_pod_kills_what_is_left_in_it() -> None:
    async with stage() as here:
        parent = await here.slices.ensure(BURSTABLE)
        with subprocess.Popen(SLEEP) as process:
            try:
                scope = await begun_scope(here.systemd, os.path.basename(parent), process.pid)
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


async def what_a_runtime_leaves_in_hierarchies_of_no_use_to_us_is_listed_and_removed() -> None:
    async with stage() as here:
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
    async with stage() as here:
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
    async with stage() as here:
        parent = await here.slices.ensure(BEST_EFFORT)
        again = await open_slices(await Systemd.open(bus=""), cgroup, (here.root,))
        await again.close()
        assert cgroup.find(parent) is not None
        assert await here.systemd.is_active(os.path.basename(parent))


async def many_pods_at_once_come_and_go() -> None:
    pods = [pod({"cpu": "100m"}) for _ in range(20)]
    async with stage() as here:
        parents = await asyncio.gather(*(here.slices.ensure(each) for each in pods))
        assert len(set(parents)) == 20
        assert await here.slices.list_pods() == {uid_of(each) for each in pods}
        branch = f"/{here.root}.slice/{here.root}-burstable.slice"
        assert here.told(branch, "cpu.shares") == "2048"
        await asyncio.gather(*(here.slices.remove(uid_of(each)) for each in pods))
        assert await here.slices.list_pods() == frozenset()
        assert here.told(branch, "cpu.shares") == "2"


# ---- what was there, and what is not any more ---------------------------------------------------


async def a_slice_of_the_reference_is_taken_over() -> None:
    async with stage() as here:
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
                scope = await begun_scope(here.systemd, unit, process.pid)
                parent = await here.slices.ensure(BURSTABLE)
                assert os.path.basename(parent) == unit
                assert here.told(parent, "memory.limit_in_bytes") == str(64 << 20)
                assert process.poll() is None
                assert await here.systemd.is_active(scope)
            finally:
                process.kill()


async def a_slice_that_was_stopped_is_made_again_and_so_is_what_it_stood_on() -> None:
    async with stage() as here:
        parent = await here.slices.ensure(BEST_EFFORT)
        systemctl("stop", f"{here.root}-besteffort.slice")
        assert not await here.systemd.is_active(os.path.basename(parent))
        assert await here.slices.ensure(BEST_EFFORT) == parent
        assert await here.systemd.is_active(os.path.basename(parent))
        assert here.told(parent, "pids.max") == str(PIDS)
        assert here.told(f"/{here.root}.slice/{here.root}-besteffort.slice", "cpu.shares") == "2"


async def a_slice_that_is_known_and_stopped_is_started() -> None:
    async with stage() as here:
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
        assert here.told(parent, "memory.limit_in_bytes") == str(64 << 20)
        systemctl("reset-failed", service)


async def systemd_may_start_itself_anew_at_any_moment() -> None:
    pods = [pod({"cpu": "100m"}) for _ in range(30)]
    async with stage() as here:
        before = await here.slices.ensure(BURSTABLE)

        async def upheaval() -> None:
            for verb in ("daemon-reexec", "daemon-reload", "daemon-reexec"):
                await asyncio.to_thread(systemctl, verb)

        async def life(each: Pod) -> None:
            for _ in range(3):
                await here.slices.ensure(each)
                await here.slices.remove(uid_of(each))
            await here.slices.ensure(each)

        await asyncio.gather(upheaval(), *map(life, pods))
        assert await here.slices.list_pods() == {uid_of(each) for each in (BURSTABLE, *pods)}
        assert here.told(before, "memory.limit_in_bytes") == str(64 << 20)
        for each in pods:
            assert await here.systemd.is_active(here.unit(each, "burstable"))


SCENES: tuple[Callable[[], Any], ...] = (
    the_kernel_has_the_limits_of_each_class,
    a_quota_between_two_percent_is_rounded_up_by_both,
    a_limit_that_is_no_more_is_taken_back,
    removing_a_pod_kills_what_is_left_in_it,
    what_a_runtime_leaves_in_hierarchies_of_no_use_to_us_is_listed_and_removed,
    only_slices_of_pods_are_ours,
    closing_leaves_the_slices_of_pods,
    many_pods_at_once_come_and_go,
    a_slice_of_the_reference_is_taken_over,
    a_slice_that_was_stopped_is_made_again_and_so_is_what_it_stood_on,
    a_slice_that_is_known_and_stopped_is_started,
    systemd_may_start_itself_anew_at_any_moment,
)
