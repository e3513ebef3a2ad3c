"""Podkeeper alone on a machine, with containers: what the runtime `cri` brings with it.

    cri_machinery(wanted, clock, objects, opened) -> Machinery, for `app/standalone.py`

Which socket: `--runtime-endpoint`, else `containerRuntimeEndpoint` of the configuration, else the first of the usual
ones that is there. Where pods' cgroups are: below `cgroupRoot` under the reference's name if that is set, so that a
node can be taken over from the reference kubelet; else below a name of this agent's own, because two agents that share
one would remove each other's pods.

A runtime that is not there is said so at once. One whose socket is there and who does not answer may just be starting:
it is waited for, for a while. One that makes cgroups through systemd is refused: nobody could make pods' cgroups there.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from podkeeper.app.build import KUBERNETES_VERSION
from podkeeper.app.local.cri_streams import CriStreams
from podkeeper.app.runtime_sockets import CGROUPFS_HINT, socket_of
from podkeeper.app.standalone import DEFAULT_POD_PIDS, Machinery, Room, Standalone, machine_node
from podkeeper.engine.link_care import LinkCare
from podkeeper.host.cgroups import DEFAULT_ROOT, HostCgroups, NoCgroups, open_cgroups, own_root
from podkeeper.host.docker_config import NodeDockerConfig, usual_places
from podkeeper.host.log_files import HostLogFiles
from podkeeper.host.log_links import HostLogLinks
from podkeeper.host.prober import NetworkProber
from podkeeper.journal.file import FileJournal
from podkeeper.model.durations import seconds_of
from podkeeper.model.errors import BadInput, Problem, TryLater
from podkeeper.model.k8s.core import NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, Pod
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.kubelet_defaults import with_defaults
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.ports.clock import Clock
from podkeeper.rules.admit import Enforcement
from podkeeper.rules.log_links import LogLink, link_name
from podkeeper.rules.naming import hostname_of, pod_log_directory
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, qos_of
from podkeeper.rules.resources import amounts_of
from podkeeper.rules.sysctls import unsafe_sysctl_trouble
from podkeeper.runtimes.cri.about import About, about
from podkeeper.runtimes.cri.machine import machine_facts
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime, Started
from podkeeper.runtimes.cri.transport import GrpcTransport
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.volumes.manager import HostVolumes

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.5
LINK_SECONDS: Final = 2.0


async def cri_machinery(wanted: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> Machinery:
    """Pods as containers of a runtime that speaks CRI: they outlive the agent. Raises BadInput, RuntimeUnavailable."""
    root, config = wanted.root, with_defaults(wanted.config)
    socket = socket_of(wanted.runtime_endpoint or wanted.config.container_runtime_endpoint)
    journal = await asyncio.to_thread(FileJournal.open, root / "journal")
    opened.push_async_callback(journal.close)
    pids = wanted.config.pod_pids_limit
    cgroups = await asyncio.to_thread(
        open_cgroups,
        cgroup,
        cgroup_root_of(root, config),
        pod_pids_limit=DEFAULT_POD_PIDS if pids is None else pids,
        of_containers=True,
    )
    opened.push_async_callback(cgroups.close)
    refuse_missing_root(config, cgroups)
    prober = NetworkProber(version=KUBERNETES_VERSION)
    opened.push_async_callback(prober.close)
    allocatable = amounts_of(machine_node(wanted).status.allocatable)
    volumes = HostVolumes(root, objects, allocatable=lambda: allocatable, fraction=clock.fraction)
    objects.subscribe(lambda changed: volumes.objects_changed())
    transport = GrpcTransport(socket)
    facts = await asyncio.to_thread(machine_facts, str(root / "pods"), str(root / "seccomp"))
    links = None if wanted.log_link_root is None else HostLogLinks(wanted.log_link_root)
    runtime = CriRuntime(
        transport,
        facts_with(facts, config),
        clock=clock,
        where=socket,
        cluster_domain=config.cluster_domain or "",
        rebuild=_rebuilding(wanted, cgroup_root_of(root, config)),
        prepare_sub_path=volumes.prepare_sub_path,
        started=None if links is None else _linking(links, str(wanted.log_root)),
    )
    opened.push_async_callback(runtime.close)
    await waited_for(socket, runtime.open)
    own = await waited_for(socket, lambda: about(transport))
    refuse_systemd(own, socket)
    streams = CriStreams(transport)
    rooms: list[Room] = [volumes.run]
    if links is not None:
        rooms.append(LinkCare(runtime=runtime, links=links, log_root=str(wanted.log_root)).run)
    return Machinery(
        runtime=runtime,
        volumes=volumes,
        cgroups=cgroups,
        prober=prober,
        journal=journal,
        streams=lambda agent: streams,
        forwards=streams,
        rooms=tuple(rooms),
        over_used=volumes.tell_over_use,
        node_pull_configs=NodeDockerConfig(usual_places(root), clock).configs,
        pull_journal=journal,
        log_files=HostLogFiles(wanted.log_root),
        kept_images=tuple(filter(None, [own.sandbox_image])),  # old runtimes do not pin it
        enforcement=Enforcement(runtime.facts.allowed_unsafe_sysctls, runtime.facts.apparmor),
        features=NodeFeatures(supplemental_groups_policy=runtime.facts.supplemental_groups_policy),
        handlers=_handlers(runtime.facts),
    )


async def waited_for(socket: str, ask: Callable[[], Awaitable[T]], patience_seconds: float = PATIENCE_SECONDS) -> T:
    """What a runtime answers; one whose socket is there and who does not answer is waited for. Raises TryLater."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    told = ""
    while True:
        try:
            return await ask()
        except TryLater as error:
            if not os.path.exists(socket) or loop.time() >= deadline:
                raise
            if told != str(error):
                told = str(error)
                log.warning("%s; in case it is just starting, it is waited for, up to %g s", error, patience_seconds)
        await asyncio.sleep(PAUSE_SECONDS)


def refuse_missing_root(config: KubeletConfiguration, cgroups: HostCgroups[Place] | NoCgroups) -> None:
    """Who names a root expects limits: pods without any would be a bad surprise. Raises BadInput."""
    if config.cgroup_root and isinstance(cgroups, NoCgroups):
        raise BadInput(
            Problem(
                f"cannot make pods' cgroups below {config.cgroup_root}: {cgroups.describe()}; right would be a cgroup "
                "that is there in every hierarchy (/ always is), or none: then podkeeper makes one of its own",
                field="cgroupRoot",
            )
        )


def refuse_systemd(own: About, socket: str) -> None:
    """A runtime that makes cgroups through systemd would refuse every pod. Raises BadInput."""
    if own.cgroup_driver == "systemd":
        raise BadInput(
            Problem(
                f"cannot use the container runtime at {socket}: it makes cgroups through systemd, and podkeeper makes "
                f"them itself (cgroupfs); {CGROUPFS_HINT}"
            )
        )


def cgroup_root_of(root: Path, config: KubeletConfiguration) -> str:
    """The name below which pods have their cgroups. Raises BadInput."""
    if config.cgroup_driver == "systemd":
        raise BadInput(
            Problem(
                f"cannot make cgroups through systemd; right would be cgroupfs, also in the runtime: {CGROUPFS_HINT}",
                field="cgroupDriver",
            )
        )
    if not config.cgroup_root:
        return own_root(str(root))
    above = config.cgroup_root.strip("/")
    return f"{above}/{DEFAULT_ROOT}" if above else DEFAULT_ROOT


def facts_with(facts: NodeFacts, config: KubeletConfiguration) -> NodeFacts:
    """What is known of the machine, with what the configuration has its say in. Raises BadInput."""
    troubles = filter(None, map(unsafe_sysctl_trouble, config.allowed_unsafe_sysctls or ()))
    if problems := [Problem(trouble, field="allowedUnsafeSysctls") for trouble in troubles]:
        raise BadInput(*problems)
    period = seconds_of(config.cpu_cfs_quota_period) if config.cpu_cfs_quota_period else 0.0
    return replace(
        facts,
        default_seccomp=bool(config.seccomp_default),
        cpu_cfs_quota=config.cpu_cfs_quota is not False,
        cpu_period=round(period * 1_000_000) or facts.cpu_period,
        allowed_unsafe_sysctls=tuple(config.allowed_unsafe_sysctls or ()),
    )


def _handlers(facts: NodeFacts) -> tuple[NodeRuntimeHandler, ...] | None:
    """The runtime's handlers, as a node's status shows them."""
    made = (
        NodeRuntimeHandler(
            name=name,
            features=NodeRuntimeHandlerFeatures(
                recursive_read_only_mounts=each.recursive_read_only, user_namespaces=each.user_namespaces
            ),
        )
        for name, each in sorted(facts.handlers.items())
    )
    return tuple(made) or None


def _linking(links: HostLogLinks, log_root: str) -> Started:
    """Links a container's log when it is started. Nobody waits long for it: what fails is healed by `LinkCare`."""

    async def link(container_id: str, config: ContainerConfig) -> None:
        meta, name = config.pod.metadata, config.container.name
        made = LogLink(
            link_name(meta.name or "", meta.namespace or "", name, container_id),
            f"{pod_log_directory(log_root, config.pod)}/{config.log_path}",
        )
        try:
            async with asyncio.timeout(LINK_SECONDS):
                await links.make([made])
        except (TryLater, TimeoutError) as error:
            log.warning("the log of container %s has no link yet, will retry: %s", name, error)

    return link


def _rebuilding(wanted: Standalone, cgroup_root: str) -> Callable[[Pod, int], SandboxConfig]:
    """What a sandbox was made from, worked out again for a runtime that does not keep it."""
    branches = {BURSTABLE: "burstable/", BEST_EFFORT: "besteffort/"}

    def rebuild(pod: Pod, attempt: int) -> SandboxConfig:
        return SandboxConfig(
            pod=pod,
            attempt=attempt,
            hostname=hostname_of(pod, wanted.config.cluster_domain or ""),
            log_directory=pod_log_directory(str(wanted.log_root), pod),
            cgroup_parent=f"/{cgroup_root}/{branches.get(qos_of(pod), '')}pod{pod.metadata.uid}",
        )

    return rebuild
