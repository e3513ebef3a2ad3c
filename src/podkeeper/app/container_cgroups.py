"""Which cgroups the pods of a container runtime have: whose hand makes them, and where.

    driver_of(what the runtime says, configuration) -> cgroupfs, systemd
    pod_cgroups(...) -> directories that we make ourselves, or slices that systemd makes for us
    parent_of(...) -> what a runtime is told as a pod's cgroup parent

The driver is the runtime's: `cgroupDriver` counts only where that does not say. Pods' cgroups are below `cgroupRoot`
under the reference's name if that is set, so that a node can be taken over from the reference kubelet; else below a
name of this agent's own, because two agents that share one would remove each other's pods. The Go ancestors are
`getCgroupDriverFromCRI` in cmd/kubelet/app/server.go and pkg/kubelet/cm/container_manager_linux.go.
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
from podkeeper.rules.cgroup_limits import PERIOD_MICROSECONDS, CpuPolicy
from podkeeper.rules.cgroup_names import directory_path, name_of, pod_name, slice_path
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place

CGROUPFS: Final = "cgroupfs"
SYSTEMD: Final = "systemd"


def driver_of(told: str, config: KubeletConfiguration) -> str:
    """Who makes cgroups: as the runtime tells ("": it does not), else as the configuration says. Raises BadInput."""
    if told:
        return told
    if config.cgroup_driver not in ("", CGROUPFS, SYSTEMD):
        raise BadInput(
            Problem(f"{config.cgroup_driver!r} is no cgroup driver; right would be cgroupfs or systemd", "cgroupDriver")
        )
    return config.cgroup_driver or CGROUPFS


def cgroup_root_of(root: Path, config: KubeletConfiguration) -> str:
    """The name below which pods have their cgroups: a path for directories, for slices one that stands for theirs."""
    if not config.cgroup_root:
        return own_root(str(root))
    above = config.cgroup_root.strip("/")
    return f"{above}/{DEFAULT_ROOT}" if above else DEFAULT_ROOT


def parent_of(driver: str, cgroup_root: str) -> Callable[[Pod], str]:
    """What a runtime is told as the cgroup parent of a pod."""
    path, root = slice_path if driver == SYSTEMD else directory_path, name_of(cgroup_root)
    return lambda pod: path(pod_name(root, pod))


def policy_of(config: KubeletConfiguration) -> CpuPolicy:
    """How pods are held to their CPU limits."""
    period = seconds_of(config.cpu_cfs_quota_period) if config.cpu_cfs_quota_period else 0.0
    return CpuPolicy(config.cpu_cfs_quota is not False, round(period * 1_000_000) or PERIOD_MICROSECONDS)


async def pod_cgroups(
    driver: str, cgroup_root: str, config: KubeletConfiguration, *, pod_pids_limit: int, opened: AsyncExitStack
) -> Cgroups:
    """Pods' cgroups as a driver makes them, until the stack is closed. Raises BadInput, TryLater."""
    if driver == SYSTEMD:
        return await _slices(cgroup_root, config, pod_pids_limit, opened)
    cgroups = await asyncio.to_thread(
        open_cgroups,
        cgroup,
        cgroup_root,
        policy=policy_of(config),
        pod_pids_limit=pod_pids_limit,
        of_containers=True,
    )
    opened.push_async_callback(cgroups.close)
    _refuse_missing_root(config, cgroups)
    return cgroups


async def _slices(cgroup_root: str, config: KubeletConfiguration, pids: int, opened: AsyncExitStack) -> Cgroups:
    """Imported when wanted: nobody else needs D-Bus."""
    from podkeeper.host.slices import open_slices
    from podkeeper.host.systemd import NoSystemd, Systemd

    try:
        systemd = await Systemd.open()
    except NoSystemd as error:
        raise BadInput(Problem(no_systemd(str(error)))) from error
    opened.push_async_callback(systemd.close)
    try:
        slices = await open_slices(systemd, cgroup, name_of(cgroup_root), policy=policy_of(config), pod_pids_limit=pids)
    except TryLater as error:
        raise TryLater(f"cannot make pods' cgroups below {slice_path(name_of(cgroup_root))}: {error}") from error
    opened.push_async_callback(slices.close)
    return slices


def no_systemd(trouble: str) -> str:
    """What to do where a runtime makes cgroups through systemd, and we cannot."""
    return (
        f"cannot make pods' cgroups as the container runtime wants them, through systemd: {trouble}; run podkeeper as "
        f"root on a machine that systemd runs; where there is none, let the runtime do without: {CGROUPFS_HINT}"
    )


def _refuse_missing_root(config: KubeletConfiguration, cgroups: HostCgroups[Place] | NoCgroups) -> None:
    """Who names a root expects limits: pods without any would be a bad surprise. Raises BadInput."""
    if config.cgroup_root and isinstance(cgroups, NoCgroups):
        raise BadInput(
            Problem(
                f"cannot make pods' cgroups below {config.cgroup_root}: {cgroups.describe()}; right would be a cgroup "
                "that is there in every hierarchy (/ always is), or none: then podkeeper makes one of its own",
                field="cgroupRoot",
            )
        )
