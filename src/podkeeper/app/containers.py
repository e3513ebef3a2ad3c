"""Open the CRI runtime and the parts that it needs, for a standalone agent.

    open_cri_runtime(options, clock, objects, opened) -> RuntimeParts, for `app/standalone.py`

The socket is `--runtime-endpoint`, or `containerRuntimeEndpoint` of the configuration, or the first default socket that
exists. `app/container_cgroups.py` chooses the cgroups, after the runtime has reported its driver.

If the socket does not exist, podkeeper exits at once. If it exists but nothing answers, the runtime may be starting, so
podkeeper retries for 30 s.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final, TypeVar

from podkeeper.app.build import KUBERNETES_VERSION, Ports
from podkeeper.app.container_cgroups import cgroup_root_of, driver_of, parent_of, pod_cgroups, policy_of
from podkeeper.app.local.cri_streams import CriStreams
from podkeeper.app.runtime_sockets import socket_of
from podkeeper.app.standalone import DEFAULT_POD_PIDS, BackgroundTask, RuntimeParts, Standalone, machine_node
from podkeeper.engine.log_symlinks import LogSymlinks
from podkeeper.host.docker_config import NodeDockerConfig, default_paths
from podkeeper.host.log_files import HostLogFiles
from podkeeper.host.log_links import HostLogLinks
from podkeeper.host.prober import NetworkProber
from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import BadInput, Problem, TryLater
from podkeeper.model.k8s.core import NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, Pod
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.kubelet_defaults import with_defaults
from podkeeper.model.log_tree import LogLink
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.ports.clock import Clock
from podkeeper.rules.admission.admit import Enforcement
from podkeeper.rules.admission.sysctls import unsafe_sysctl_error
from podkeeper.rules.logs.symlinks import link_name
from podkeeper.rules.naming import hostname_of, pod_log_directory
from podkeeper.rules.resources import amounts_of
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.connect import runtime_version
from podkeeper.runtimes.cri.host_facts import machine_facts
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime, Started
from podkeeper.runtimes.cri.runtime_info import runtime_info
from podkeeper.runtimes.cri.transport import GrpcTransport
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.volumes.manager import HostVolumes

log = logging.getLogger(__name__)

T = TypeVar("T")

STARTUP_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.5
# A start must not wait for a hung file system. `LogSymlinks` creates the link within a minute.
LINK_SECONDS: Final = 2.0


async def open_cri_runtime(
    options: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack
) -> RuntimeParts:
    """Open a CRI runtime. Its containers keep running without the agent. Raises BadInput, RuntimeUnavailable."""
    root, config = options.root, with_defaults(options.config)
    socket = socket_of(options.runtime_endpoint or options.config.container_runtime_endpoint)
    journal = await asyncio.to_thread(FileJournal.open, root / "journal")
    opened.push_async_callback(journal.close)
    transport = GrpcTransport(socket)
    opened.push_async_callback(transport.close)
    await retry_while_starting(socket, lambda: runtime_version(CriCalls(transport), socket))
    info = await retry_while_starting(socket, lambda: runtime_info(transport))
    driver, cgroup_root = driver_of(info.cgroup_driver, config), cgroup_root_of(root, config)
    pids = DEFAULT_POD_PIDS if options.config.pod_pids_limit is None else options.config.pod_pids_limit
    cgroups = await pod_cgroups(driver, cgroup_root, config, pod_pids_limit=pids, opened=opened)
    prober = NetworkProber(version=KUBERNETES_VERSION)
    opened.push_async_callback(prober.close)
    allocatable = amounts_of(machine_node(options).status.allocatable)
    volumes = HostVolumes(root, objects, allocatable=lambda: allocatable, fraction=clock.fraction)
    objects.subscribe(lambda changed: volumes.objects_changed())
    facts = await asyncio.to_thread(machine_facts, str(root / "pods"), str(root / "seccomp"))
    links = None if options.log_link_root is None else HostLogLinks(options.log_link_root)
    runtime = CriRuntime(
        transport,
        facts_with(facts, config),
        clock=clock,
        where=socket,
        cluster_domain=config.cluster_domain or "",
        rebuild=_sandbox_rebuilder(options, parent_of(driver, cgroup_root)),
        prepare_sub_path=volumes.prepare_sub_path,
        started=None if links is None else _log_linker(links, str(options.log_root)),
    )
    opened.push_async_callback(runtime.close)
    await retry_while_starting(socket, runtime.open)
    streams = CriStreams(transport)
    background_tasks: list[BackgroundTask] = [volumes.run]
    if links is not None:
        background_tasks.append(LogSymlinks(runtime=runtime, links=links, log_root=str(options.log_root)).run)
    ports = Ports(
        runtime=runtime,
        volumes=volumes,
        cgroups=cgroups,
        prober=prober,
        clock=clock,
        journal=journal,
        subscribe_overuse=volumes.on_overuse,
        node_pull_configs=NodeDockerConfig(default_paths(root), clock).configs,
        pull_journal=journal,
        log_files=HostLogFiles(options.log_root),
        # Image GC must keep it, because old runtimes do not pin it.
        kept_images=tuple(filter(None, [info.sandbox_image])),
    )
    return RuntimeParts(
        ports=ports,
        journal=journal,
        streams=lambda agent: streams,
        forwards=streams,
        background_tasks=tuple(background_tasks),
        enforcement=Enforcement(runtime.facts.allowed_unsafe_sysctls, runtime.facts.apparmor),
        features=NodeFeatures(supplemental_groups_policy=runtime.facts.supplemental_groups_policy),
        handlers=_handlers(runtime.facts),
    )


async def retry_while_starting(
    socket: str, call: Callable[[], Awaitable[T]], timeout_seconds: float = STARTUP_SECONDS
) -> T:
    """Return the runtime's answer. Retry while the socket exists but nothing answers. Raises TryLater."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    last_error = ""
    while True:
        try:
            return await call()
        except TryLater as error:
            # Without a socket, the runtime is not installed or the path is wrong. Waiting does not help.
            if not os.path.exists(socket) or loop.time() >= deadline:
                raise
            if last_error != str(error):
                last_error = str(error)
                log.warning("%s; the runtime may be starting, will retry for up to %g s", error, timeout_seconds)
        await asyncio.sleep(RETRY_SECONDS)


def facts_with(facts: NodeFacts, config: KubeletConfiguration) -> NodeFacts:
    """Add the settings of the configuration to the facts about the machine. Raises BadInput."""
    errors = filter(None, map(unsafe_sysctl_error, config.allowed_unsafe_sysctls or ()))
    if problems := [Problem(error, field="allowedUnsafeSysctls") for error in errors]:
        raise BadInput(*problems)
    policy = policy_of(config)
    return replace(
        facts,
        default_seccomp=bool(config.seccomp_default),
        cpu_cfs_quota=policy.enforce,
        cpu_period=policy.period,
        allowed_unsafe_sysctls=tuple(config.allowed_unsafe_sysctls or ()),
    )


def _handlers(facts: NodeFacts) -> tuple[NodeRuntimeHandler, ...] | None:
    """Return the runtime's handlers for the node's status."""
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


def _log_linker(links: HostLogLinks, log_root: str) -> Started:
    """Return a hook that links a container's log after its start. It gives up soon, because `LogSymlinks` retries."""

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
            log.warning("cannot link the log of container %s, will retry: %s", name, error)

    return link


def _sandbox_rebuilder(options: Standalone, parent: Callable[[Pod], str]) -> Callable[[Pod, int], SandboxConfig]:
    """Return a function that computes the config of an existing sandbox, because runtimes do not store all of it."""

    def rebuild(pod: Pod, attempt: int) -> SandboxConfig:
        return SandboxConfig(
            pod=pod,
            attempt=attempt,
            hostname=hostname_of(pod, options.config.cluster_domain or ""),
            log_directory=pod_log_directory(str(options.log_root), pod),
            cgroup_parent=parent(pod),
        )

    return rebuild
