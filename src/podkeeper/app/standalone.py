"""Construct all parts of a standalone agent from one frozen value.

    Standalone -> open_agent_parts -> AgentParts: ports and settings for an `Agent`, the stop filter, streams

One function per runtime (`_RUNTIMES`) opens the runtime, volumes, cgroups, prober and journal. Sources, stop filter,
node and settings are the same for all runtimes. At its end, the context closes everything in reverse order.

Each root has at most one agent: the lock of the root is taken first and released last.
"""

import asyncio
import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from podkeeper.app.agent import Agent
from podkeeper.app.build import KUBERNETES_VERSION, Ports, Settings, simple_node
from podkeeper.app.image_settings import SUPPORTED_FIELDS as SUPPORTED_IMAGE_FIELDS
from podkeeper.app.image_settings import gc_policy_of, limits_of, verification_of
from podkeeper.app.local.forwards import Forwards, NoForwards
from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.app.local.streams import PlainStreams, Streams
from podkeeper.app.name_lookup import NameLookup
from podkeeper.app.sources import drop_unused_manifests, stored_manifests
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.container_gc import PERIOD_SECONDS as CONTAINER_GC_SECONDS
from podkeeper.host.clock import SystemClock
from podkeeper.journal.errors import JournalInUse
from podkeeper.journal.lock import JournalLock
from podkeeper.model.durations import seconds_of
from podkeeper.model.errors import AgentError, BadInput, Problem
from podkeeper.model.k8s.core import Node, NodeFeatures, NodeRuntimeHandler
from podkeeper.model.kubelet_config import Duration, KubeletConfiguration
from podkeeper.model.kubelet_defaults import with_defaults
from podkeeper.model.messages import FILE_SOURCE, HTTP_SOURCE
from podkeeper.model.quantity import parse_quantity
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.rules.admission.admit import Enforcement
from podkeeper.rules.backoff.table import DEFAULT_CURVE, Curve
from podkeeper.rules.dns import ClusterDns
from podkeeper.rules.logs.rotation import DEFAULT_ROTATION_POLICY as USUAL_LOG_POLICY
from podkeeper.rules.logs.rotation import RotationPolicy as LogPolicy
from podkeeper.rules.resources import amounts_of
from podkeeper.rules.validate.names import NOT_NEGATIVE, POSITIVE, wrong
from podkeeper.rules.worker.timing import DEFAULT_TIMING, SyncTiming
from podkeeper.sources.file import PERIOD_SECONDS, FileSource
from podkeeper.sources.http import HttpSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_errors import ReportProblems

# The kubelet's default of maxPods.
DEFAULT_MAX_PODS = 110
DEFAULT_POD_PIDS = 1024
"""Default limit of processes per pod, against fork bombs. The kubelet has no default limit."""
KUBELET_LOG_ROOT = Path("/var/log/pods")
LOG_LINK_ROOT = Path("/var/log/containers")
"""The kubelet's log directories, where log collectors search."""
SUPPORTED_FIELDS = frozenset(
    {
        *("staticPodPath", "staticPodURL", "staticPodURLHeader", "fileCheckFrequency", "httpCheckFrequency"),
        *("syncFrequency", "maxPods", "podsPerCore", "podLogsDir", "podPidsLimit", "crashLoopBackOff"),
        *SUPPORTED_IMAGE_FIELDS,
        *("containerLogMaxSize", "containerLogMaxFiles", "containerLogMaxWorkers", "containerLogMonitorInterval"),
    }
)
"""The supported fields of the kubelet configuration."""
SUPPORTED_CRI_FIELDS = SUPPORTED_FIELDS | {
    *("containerRuntimeEndpoint", "cgroupRoot", "cgroupDriver", "seccompDefault", "cpuCFSQuota", "cpuCFSQuotaPeriod"),
    *("allowedUnsafeSysctls", "clusterDNS", "clusterDomain", "resolvConf"),
}
"""The supported fields with `--runtime cri`."""


BackgroundTask = Callable[[], Coroutine[None, None, None]]
"""A coroutine function that runs beside the agent until it is cancelled."""


class AlreadyRunning(AgentError):
    """Another agent uses this root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """The options of `podkeeper run`."""

    paths: tuple[Path, ...]
    root: Path
    node_name: str
    runtime: str = "process"
    runtime_endpoint: str = ""  # for the runtime `cri`; "": from the configuration, or a default socket
    host_images: tuple[str, ...] = ()
    config: KubeletConfiguration = field(default_factory=KubeletConfiguration)
    keep_secrets: bool = False  # whether Secrets of manifests may be stored on disk (docs/decisions/0010)
    log_links: Path | None = None  # directory of links to container logs; None: see `log_link_root`

    @property
    def log_root(self) -> Path:
        return Path(self.config.pod_logs_dir) if self.config.pod_logs_dir else self.root / "logs"

    @property
    def log_link_root(self) -> Path | None:
        """The directory of links to container logs. None if the logs are not where log collectors search."""
        return self.log_links or (LOG_LINK_ROOT if self.log_root == KUBELET_LOG_ROOT else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeParts:
    """The parts that depend on the runtime."""

    ports: Ports  # without sources and objects
    journal: Journal
    streams: Callable[[Agent], Streams] = PlainStreams
    forwards: Forwards = field(default_factory=NoForwards)
    background_tasks: tuple[BackgroundTask, ...] = ()
    cancel_stops: Callable[[], Awaitable[None]] | None = None  # cancels all stops; None: the runtime cannot do that
    enforcement: Enforcement | None = None  # what the runtime can enforce; None: admission does not check it
    features: NodeFeatures | None = None  # features of the runtime
    handlers: tuple[NodeRuntimeHandler, ...] | None = None  # features of each of its handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """All parts of an agent, ready for `Agent`."""

    ports: Ports
    settings: Settings
    stop_filter: StopFilter
    streams: Callable[[Agent], Streams]
    forwards: Forwards
    background_tasks: tuple[BackgroundTask, ...]  # coroutine functions to run beside the agent
    problems: Callable[[], tuple[Problem, ...]]  # returns the current problems of the manifests
    cancel_stops: Callable[[], Awaitable[None]] | None  # cancels the termination of pods that are stopping


@asynccontextmanager
async def open_agent_parts(options: Standalone, report: ReportProblems | None = None) -> AsyncIterator[AgentParts]:
    """Open all parts of an agent. `report` receives problems of manifests. Raises AlreadyRunning, BadInput."""
    async with AsyncExitStack() as opened:
        clock = SystemClock()
        # Before anything is opened, so that a second agent touches nothing. The stack releases it last.
        _take_root(options.root, opened)
        objects = LocalObjects()
        parts = await _opener_of(options.runtime)(options, clock, objects, opened)
        stop_filter = StopFilter(clock=clock, checkpoints=Checkpoints(parts.journal, "stopped/"))
        sources = _sources(options, clock, objects, parts.journal, report)
        # Otherwise the Secrets of a source that is no longer configured would stay in the journal forever (decision
        # 10).
        await drop_unused_manifests(parts.journal, [source.name for source in sources])
        yield AgentParts(
            ports=dataclasses.replace(
                parts.ports, sources=tuple(stop_filter.filtered(source) for source in sources), objects=objects
            ),
            settings=_settings(options, parts),
            stop_filter=stop_filter,
            streams=parts.streams,
            forwards=parts.forwards,
            background_tasks=parts.background_tasks,
            problems=lambda: tuple(problem for source in sources for problem in source.problems()),
            cancel_stops=parts.cancel_stops,
        )


# ---- runtimes ----

OpenRuntime = Callable[[Standalone, Clock, LocalObjects, AsyncExitStack], Awaitable[RuntimeParts]]
"""Opens a runtime and its parts. The stack closes them. The objects are the ConfigMaps and Secrets of pods."""


async def _fake(options: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> RuntimeParts:
    """Simulate pods in this process. Annotations script their containers. They end with the agent."""
    from podkeeper.runtimes.fake import FakeRuntime
    from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes

    journal = FakeJournal()
    ports = Ports(
        runtime=FakeRuntime(clock),
        volumes=FakeVolumes(clock),
        cgroups=FakeCgroups(clock),
        prober=FakeProber(),
        clock=clock,
        journal=journal,
    )
    return RuntimeParts(ports=ports, journal=journal)


async def _process(options: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> RuntimeParts:
    """Run pods as processes of this machine. They keep running without the agent."""
    from podkeeper.app.local.forwards import HostForwards
    from podkeeper.app.local.process_streams import ProcessStreams
    from podkeeper.host.cgroups import open_cgroups, own_root
    from podkeeper.host.log_files import HostLogFiles
    from podkeeper.host.prober import NetworkProber
    from podkeeper.journal.file import FileJournal
    from podkeeper.runtimes.process.runtime import ProcessRuntime
    from podkeeper.volumes.manager import HostVolumes

    root = options.root
    journal = await asyncio.to_thread(FileJournal.open, root / "journal")
    opened.push_async_callback(journal.close)
    pids = DEFAULT_POD_PIDS if options.config.pod_pids_limit is None else options.config.pod_pids_limit
    cgroups = await asyncio.to_thread(open_cgroups, own_root(str(root)), pod_pids_limit=pids)
    opened.push_async_callback(cgroups.close)
    prober = NetworkProber(version=KUBERNETES_VERSION)
    opened.push_async_callback(prober.close)
    allocatable = amounts_of(machine_node(options).status.allocatable)
    runtime = await opened.enter_async_context(
        ProcessRuntime(
            str(root / "runtime"),
            host_ips=lambda: (host_ip(),),
            host_images=options.host_images,
            hidden=(str(root),),
            seccomp_directory=str(root / "seccomp"),
            pod_pids_limit=pids,
        )
    )
    volumes = HostVolumes(root, objects, allocatable=lambda: allocatable, helper=runtime, fraction=clock.fraction)
    objects.subscribe(lambda changed: volumes.objects_changed())
    ports = Ports(
        runtime=runtime,
        volumes=volumes,
        cgroups=cgroups,
        prober=prober,
        clock=clock,
        journal=journal,
        subscribe_overuse=volumes.on_overuse,
        log_files=HostLogFiles(options.log_root),
    )
    return RuntimeParts(
        ports=ports,
        journal=journal,
        streams=lambda agent: ProcessStreams(runtime),
        forwards=HostForwards(),
        background_tasks=(volumes.run,),
        cancel_stops=runtime.cancel_stops,
    )


async def _cri(options: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> RuntimeParts:
    # Import late, because protobuf and grpc need ten MiB of memory.
    from podkeeper.app.containers import open_cri_runtime

    return await open_cri_runtime(options, clock, objects, opened)


_RUNTIMES: Mapping[str, OpenRuntime] = {"process": _process, "cri": _cri, "fake": _fake}


def _opener_of(runtime: str) -> OpenRuntime:
    opener = _RUNTIMES.get(runtime)
    if opener is None:
        known = ", ".join(_RUNTIMES)
        raise BadInput(Problem(f"unknown runtime {runtime!r}; supported runtimes: {known}"))
    return opener


# ---- parts that do not depend on the runtime ----


def _take_root(root: Path, opened: AsyncExitStack) -> None:
    """Lock the root for this agent. The stack releases the lock."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = JournalLock.take(root / "agent.lock")
    except JournalInUse as error:
        owner = f"process {error.pid}" if error.pid else "another process"
        raise AlreadyRunning(
            f"cannot start: another agent uses the root {root} ({owner}); list its pods with "
            f"'podkeeper ps --root {root}', or use another root with --root DIR"
        ) from error
    except OSError as error:
        raise BadInput(
            Problem(f"cannot use {root} as the agent's root: {error.strerror}; use another root with --root DIR")
        ) from error
    opened.callback(lock.release)


def _sources(
    options: Standalone, clock: Clock, objects: LocalObjects, journal: Journal, report: ReportProblems | None
) -> tuple[FileSource | HttpSource, ...]:
    config = options.config
    paths = (*options.paths, *([Path(config.static_pod_path)] if config.static_pod_path else []))
    files = FileSource(
        paths,
        options.node_name,
        clock,
        objects=objects,
        period_seconds=_seconds(config.file_check_frequency, PERIOD_SECONDS),
        report=report,
        stored_manifests=stored_manifests(journal, FILE_SOURCE, options.node_name, keep_secrets=options.keep_secrets),
    )
    if not config.static_pod_url:
        return (files,)
    web = HttpSource(
        config.static_pod_url,
        options.node_name,
        clock,
        headers=config.static_pod_url_header,
        objects=objects,
        period_seconds=_seconds(config.http_check_frequency, PERIOD_SECONDS),
        report=report,
        stored_manifests=stored_manifests(journal, HTTP_SOURCE, options.node_name, keep_secrets=options.keep_secrets),
    )
    return files, web


def _settings(options: Standalone, parts: RuntimeParts) -> Settings:
    node = machine_node(options)
    return Settings(
        node=replace(node, status=replace(node.status, features=parts.features, runtime_handlers=parts.handlers)),
        host_ips=(host_ip(),),
        log_root=str(options.log_root),
        log_policy=_log_policy(options.config),
        timing=SyncTiming(resync_seconds=_seconds(options.config.sync_frequency, DEFAULT_TIMING.resync_seconds)),
        restart_curve=_restart_curve(options.config),
        runtime_limits=limits_of(options.config),
        verification=verification_of(options.config),
        image_gc=gc_policy_of(options.config),
        container_gc_seconds=CONTAINER_GC_SECONDS,
        enforcement=parts.enforcement,
        cluster_domain=options.config.cluster_domain or "cluster.local",
        lookup=_lookup(with_defaults(options.config)) if options.runtime == "cri" else None,
    )


def _lookup(config: KubeletConfiguration) -> NameLookup:
    cluster = ClusterDns(tuple(config.cluster_dns or ()), config.cluster_domain or "", joined=False)
    return NameLookup(cluster, config.resolv_conf or "", (host_ip(),))


def machine_node(options: Standalone) -> Node:
    """Return this machine as a node, with its capacity."""
    cores = os.cpu_count() or 1
    max_pods = options.config.max_pods if options.config.max_pods is not None else DEFAULT_MAX_PODS
    if options.config.pods_per_core:
        max_pods = min(max_pods, options.config.pods_per_core * cores)
    memory_kib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    return simple_node(options.node_name, cpu=str(cores), memory=f"{memory_kib}Ki", pods=max_pods)


def _restart_curve(config: KubeletConfiguration) -> Curve:
    maximum = config.crash_loop_back_off.max_container_restart_period
    return DEFAULT_CURVE.tuned(maximum=timedelta(seconds=seconds_of(maximum))) if maximum else DEFAULT_CURVE


def _log_policy(config: KubeletConfiguration) -> LogPolicy:
    """Return the policy of the log rotation. A negative size disables it. Raises BadInput."""
    complete = with_defaults(config)
    files, workers = complete.container_log_max_files or 0, complete.container_log_max_workers or 0
    seconds = _seconds(config.container_log_monitor_interval, USUAL_LOG_POLICY.interval_seconds)
    problems = []
    if files < 2:
        problems.append(wrong("containerLogMaxFiles", files, "must be greater than 1"))
    if workers < 1:
        problems.append(wrong("containerLogMaxWorkers", workers, POSITIVE))
    if seconds < 0:
        problems.append(wrong("containerLogMonitorInterval", config.container_log_monitor_interval, NOT_NEGATIVE))
    size = 0
    try:
        size = parse_quantity(complete.container_log_max_size or "").value
    except BadInput as error:
        problems.append(Problem(str(error), "containerLogMaxSize"))
    if problems:
        raise BadInput(*problems)
    return LogPolicy(size if size >= 0 else None, files, workers, seconds)


def _seconds(duration: Duration | None, default: float) -> float:
    """Return a configured period. As in the kubelet, no value and zero mean the default."""
    return (seconds_of(duration) if duration else 0.0) or default


def host_ip() -> str:
    """Return the source address of this machine's default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # For UDP, connect() only looks up the route and sends nothing. The address is reserved for documentation.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
