"""Choose the cgroup driver and the cgroups of pods that a CRI runtime runs.

    driver_of(the runtime's driver, configuration) -> cgroupfs, systemd
    pod_cgroups(...) -> directories made by podkeeper, or slices made by systemd
    parent_of(...) -> the cgroup parent that is sent to the runtime

The runtime's driver has priority. `cgroupDriver` is used only if the runtime does not report one.

With `cgroupRoot`, pods use the kubelet's cgroup names, so that podkeeper can adopt a node from the kubelet. Otherwise
they use a name that is unique to this agent, because two agents with the same name would remove each other's pods.
Kubelet counterparts: `getCgroupDriverFromCRI` in cmd/kubelet/app/server.go and
pkg/kubelet/cm/container_manager_linux.go.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from podkeeper.app.runtime_sockets import CGROUPFS_HINT
from podkeeper.host.cgroups import DEFAULT_ROOT, HostCgroups, NoCgroups, open_cgroups, own_root
from podkeeper.model.durations import seconds_of
from podkeeper.model.errors import BadInput, Problem, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.ports.cgroups import Cgroups
from podkeeper.rules.cgroup.limits import PERIOD_MICROSECONDS, CpuPolicy
from podkeeper.rules.cgroup.names import directory_path, name_of, pod_name, slice_path
from podkeeper.rules.validate.names import unsupported

CGROUPFS: Final = "cgroupfs"
SYSTEMD: Final = "systemd"


def driver_of(reported: str, config: KubeletConfiguration) -> str:
    """Return the runtime's driver, or the configured one if the runtime reports "". Raises BadInput."""
    # A pod cgroup of the other driver would be invisible to the runtime or to systemd.
    if reported:
        return reported
    if config.cgroup_driver not in ("", CGROUPFS, SYSTEMD):
        raise BadInput(unsupported("cgroupDriver", config.cgroup_driver, (CGROUPFS, SYSTEMD)))
    return config.cgroup_driver or CGROUPFS


def cgroup_root_of(root: Path, config: KubeletConfiguration) -> str:
    """Return the parent of all pod cgroups as a path. `slice_path` converts it for the systemd driver."""
    if not config.cgroup_root:
        return own_root(str(root))
    above = config.cgroup_root.strip("/")
    return f"{above}/{DEFAULT_ROOT}" if above else DEFAULT_ROOT


def parent_of(driver: str, cgroup_root: str) -> Callable[[Pod], str]:
    path, root = slice_path if driver == SYSTEMD else directory_path, name_of(cgroup_root)
    return lambda pod: path(pod_name(root, pod))


def policy_of(config: KubeletConfiguration) -> CpuPolicy:
    period = seconds_of(config.cpu_cfs_quota_period) if config.cpu_cfs_quota_period else 0.0
    return CpuPolicy(config.cpu_cfs_quota is not False, round(period * 1_000_000) or PERIOD_MICROSECONDS)


async def pod_cgroups(
    driver: str, cgroup_root: str, config: KubeletConfiguration, *, pod_pids_limit: int, opened: AsyncExitStack
) -> Cgroups:
    """Open the pod cgroups of a driver. The stack closes them. Raises BadInput, TryLater."""
    if driver == SYSTEMD:
        return await _slices(cgroup_root, config, pod_pids_limit, opened)
    cgroups = await asyncio.to_thread(
        open_cgroups,
        cgroup_root,
        policy=policy_of(config),
        pod_pids_limit=pod_pids_limit,
        of_containers=True,
    )
    opened.push_async_callback(cgroups.close)
    _refuse_missing_root(config, cgroups)
    return cgroups


async def _slices(cgroup_root: str, config: KubeletConfiguration, pids: int, opened: AsyncExitStack) -> Cgroups:
    # Import late, because only this driver needs D-Bus.
    from podkeeper.host.slices import open_slices
    from podkeeper.host.systemd import NoSystemd, Systemd

    try:
        systemd = await Systemd.open()
    except NoSystemd as error:
        raise BadInput(Problem(no_systemd(str(error)))) from error
    opened.push_async_callback(systemd.close)
    try:
        slices = await open_slices(systemd, name_of(cgroup_root), policy=policy_of(config), pod_pids_limit=pids)
    except TryLater as error:
        raise TryLater(f"cannot create pod cgroups in {slice_path(name_of(cgroup_root))}: {error}") from error
    opened.push_async_callback(slices.close)
    return slices


def no_systemd(error: str) -> str:
    """Return the error for a runtime with the systemd driver on a machine where systemd is not available."""
    return (
        f"cannot create pod cgroups with systemd, the runtime's cgroup driver: {error}; run podkeeper as root, or on "
        f"a machine without systemd, switch the runtime to cgroupfs: {CGROUPFS_HINT}"
    )


def _refuse_missing_root(config: KubeletConfiguration, cgroups: HostCgroups | NoCgroups) -> None:
    """Reject a `cgroupRoot` that cannot be used.

    Otherwise limits would be missing without an error. Raises BadInput.
    """
    if config.cgroup_root and isinstance(cgroups, NoCgroups):
        raise BadInput(
            Problem(
                f"cannot create pod cgroups in {config.cgroup_root}: {cgroups.describe()}; use a cgroup that exists in "
                "every hierarchy (such as /), or leave cgroupRoot empty",
                field="cgroupRoot",
            )
        )
