"""Construct all parts of a standalone agent from one frozen value.

    Standalone -> assembled -> Assembly: ports and settings for an `Agent`, the gate, streams

One function per runtime (`_MAKERS`) opens the runtime, volumes, cgroups, prober and journal. Sources, gate, node and
settings are the same for all runtimes. At its end, the context closes everything in reverse order.

Each root has at most one agent: the lock of the root is taken first and released last.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from podkeeper.app.build import KUBERNETES_VERSION, Agent, Complain, Ports, Settings, simple_node
from podkeeper.app.image_settings import HONOURED as HONOURED_OF_IMAGES
from podkeeper.app.image_settings import gc_policy_of, limits_of, verification_of
from podkeeper.app.local.forwards import Forwards, NoForwards
from podkeeper.app.local.gate import Gate
from podkeeper.app.local.streams import PlainStreams, Streams
from podkeeper.app.name_lookup import NameLookup
from podkeeper.app.sources import drop_unused_manifest_notes, manifest_notes
from podkeeper.engine.container_care import PERIOD_SECONDS as CONTAINER_GC_SECONDS
from podkeeper.engine.notebook import Notebook
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
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.logs import LogFiles
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Runtime
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.admit import Enforcement
from podkeeper.rules.backoff import DEFAULT_CURVE, Curve
from podkeeper.rules.dns import ClusterNames
from podkeeper.rules.log_rotation import USUAL_POLICY as USUAL_LOG_POLICY
from podkeeper.rules.log_rotation import Policy as LogPolicy
from podkeeper.rules.resources import amounts_of
from podkeeper.rules.validate.names import NOT_NEGATIVE, POSITIVE, wrong
from podkeeper.rules.worker.pauses import USUAL_TIMING, Timing
from podkeeper.sources.complaints import Report
from podkeeper.sources.file import PERIOD_SECONDS, FileSource
from podkeeper.sources.http import HttpSource
from podkeeper.sources.local_objects import LocalObjects

DEFAULT_MAX_PODS = 110
DEFAULT_POD_PIDS = 1024
"""Default limit of processes per pod. The kubelet has none, but a fork bomb would then stop the whole machine."""
REFERENCE_LOG_ROOT = Path("/var/log/pods")
LOG_LINK_ROOT = Path("/var/log/containers")
"""The kubelet's log directories, where log collectors search."""
HONOURED = frozenset(
    {
        *("staticPodPath", "staticPodURL", "staticPodURLHeader", "fileCheckFrequency", "httpCheckFrequency"),
        *("syncFrequency", "maxPods", "podsPerCore", "podLogsDir", "podPidsLimit", "crashLoopBackOff"),
        *HONOURED_OF_IMAGES,
        *("containerLogMaxSize", "containerLogMaxFiles", "containerLogMaxWorkers", "containerLogMonitorInterval"),
    }
)
"""The supported fields of the kubelet configuration."""
HONOURED_FOR_CONTAINERS = HONOURED | {
    *("containerRuntimeEndpoint", "cgroupRoot", "cgroupDriver", "seccompDefault", "cpuCFSQuota", "cpuCFSQuotaPeriod"),
    *("allowedUnsafeSysctls", "clusterDNS", "clusterDomain", "resolvConf"),
}
"""The supported fields with `--runtime cri`."""


Room = Callable[[], Coroutine[None, None, None]]
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
        return self.log_links or (LOG_LINK_ROOT if self.log_root == REFERENCE_LOG_ROOT else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """The parts that depend on the runtime."""

    runtime: Runtime
    volumes: Volumes
    cgroups: Cgroups
    prober: Prober
    journal: Journal
    streams: Callable[[Agent], Streams] = PlainStreams
    forwards: Forwards = field(default_factory=NoForwards)
    rooms: tuple[Room, ...] = ()
    over_used: Callable[[Complain], None] | None = None
    node_pull_configs: Callable[[], Awaitable[Sequence[str]]] | None = None
    pull_journal: Journal | None = None  # records which pod pulled which image, if access to images is checked
    kept_images: tuple[str, ...] = ()
    spare_all: Callable[[], Awaitable[None]] | None = None  # cancels all stops; None: the runtime cannot do that
    log_files: LogFiles | None = None
    enforcement: Enforcement | None = None  # what the runtime can enforce; None: admission does not check it
    features: NodeFeatures | None = None  # features of the runtime
    handlers: tuple[NodeRuntimeHandler, ...] | None = None  # features of each of its handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """All parts of an agent, ready for `Agent`."""

    ports: Ports
    settings: Settings
    gate: Gate
    streams: Callable[[Agent], Streams]
    forwards: Forwards
    rooms: tuple[Room, ...]  # coroutine functions to run beside the agent
    problems: Callable[[], tuple[Problem, ...]]  # returns the current problems of the manifests
    spare_all: Callable[[], Awaitable[None]] | None  # cancels the termination of pods that are stopping


@asynccontextmanager
async def assembled(wanted: Standalone, report: Report | None = None) -> AsyncIterator[Assembly]:
    """Open all parts of an agent. `report` receives problems of manifests. Raises AlreadyRunning, BadInput."""
    async with AsyncExitStack() as opened:
        clock = SystemClock()
        _take_root(wanted.root, opened)
        objects = LocalObjects()
        parts = await _maker_of(wanted.runtime)(wanted, clock, objects, opened)
        gate = Gate(clock=clock, notes=Notebook(parts.journal, "stopped/"))
        sources = _sources(wanted, clock, objects, parts.journal, report)
        await drop_unused_manifest_notes(parts.journal, [source.name for source in sources])
        yield Assembly(
            ports=Ports(
                runtime=parts.runtime,
                volumes=parts.volumes,
                cgroups=parts.cgroups,
                prober=parts.prober,
                clock=clock,
                sources=tuple(gate.behind(source) for source in sources),
                objects=objects,
                journal=parts.journal,
                over_used=parts.over_used,
                node_pull_configs=parts.node_pull_configs,
                pull_journal=parts.pull_journal,
                kept_images=parts.kept_images,
                log_files=parts.log_files,
            ),
            settings=_settings(wanted, parts),
            gate=gate,
            streams=parts.streams,
            forwards=parts.forwards,
            rooms=parts.rooms,
            problems=lambda: tuple(problem for source in sources for problem in source.problems()),
            spare_all=parts.spare_all,
        )


# ---- runtimes ----

Maker = Callable[[Standalone, Clock, LocalObjects, AsyncExitStack], Awaitable[Machinery]]
"""Opens a runtime and its parts. The stack closes them. The objects are the config maps and secrets of pods."""


async def _fake(wanted: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> Machinery:
    """Simulate pods in this process. Their annotations script them. They end with the agent."""
    from podkeeper.runtimes.fake import FakeRuntime
    from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes

    return Machinery(
        runtime=FakeRuntime(clock),
        volumes=FakeVolumes(clock),
        cgroups=FakeCgroups(clock),
        prober=FakeProber(),
        journal=FakeJournal(),
    )


async def _process(wanted: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> Machinery:
    """Run pods as processes of this machine. They keep running without the agent."""
    from podkeeper.app.local.forwards import HostForwards
    from podkeeper.app.local.process_streams import ProcessStreams
    from podkeeper.host.cgroups import open_cgroups, own_root
    from podkeeper.host.log_files import HostLogFiles
    from podkeeper.host.prober import NetworkProber
    from podkeeper.journal.file import FileJournal
    from podkeeper.runtimes.process.keeper import cgroup
    from podkeeper.runtimes.process.runtime import ProcessRuntime
    from podkeeper.volumes.manager import HostVolumes

    root = wanted.root
    journal = await asyncio.to_thread(FileJournal.open, root / "journal")
    opened.push_async_callback(journal.close)
    pids = DEFAULT_POD_PIDS if wanted.config.pod_pids_limit is None else wanted.config.pod_pids_limit
    cgroups = await asyncio.to_thread(open_cgroups, cgroup, own_root(str(root)), pod_pids_limit=pids)
    opened.push_async_callback(cgroups.close)
    prober = NetworkProber(version=KUBERNETES_VERSION)
    opened.push_async_callback(prober.close)
    allocatable = amounts_of(machine_node(wanted).status.allocatable)
    runtime = await opened.enter_async_context(
        ProcessRuntime(
            str(root / "runtime"),
            host_ips=lambda: (host_ip(),),
            host_images=wanted.host_images,
            hidden=(str(root),),
            pod_pids_limit=pids,
        )
    )
    volumes = HostVolumes(root, objects, allocatable=lambda: allocatable, helper=runtime, fraction=clock.fraction)
    objects.subscribe(lambda changed: volumes.objects_changed())
    return Machinery(
        runtime=runtime,
        volumes=volumes,
        cgroups=cgroups,
        prober=prober,
        journal=journal,
        streams=lambda agent: ProcessStreams(runtime),
        forwards=HostForwards(),
        rooms=(volumes.run,),
        over_used=volumes.tell_over_use,
        spare_all=runtime.spare_all,
        log_files=HostLogFiles(wanted.log_root),
    )


async def _cri(wanted: Standalone, clock: Clock, objects: LocalObjects, opened: AsyncExitStack) -> Machinery:
    # Import late, because protobuf and grpc need ten MiB of memory.
    from podkeeper.app.containers import cri_machinery

    return await cri_machinery(wanted, clock, objects, opened)


_MAKERS: Mapping[str, Maker] = {"process": _process, "cri": _cri, "fake": _fake}


def _maker_of(runtime: str) -> Maker:
    maker = _MAKERS.get(runtime)
    if maker is None:
        known = ", ".join(_MAKERS)
        raise BadInput(Problem(f"unknown runtime {runtime!r}; supported runtimes: {known}"))
    return maker


# ---- parts that do not depend on the runtime ----


def _take_root(root: Path, opened: AsyncExitStack) -> None:
    """Lock the root for this agent. The stack releases the lock."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = JournalLock.take(root / "agent.lock")
    except JournalInUse as error:
        who = f"process {error.pid}" if error.pid else "another process"
        raise AlreadyRunning(
            f"cannot start: another agent uses the root {root} ({who}); list its pods with "
            f"'podkeeper ps --root {root}', or use another root with --root DIR"
        ) from error
    except OSError as error:
        raise BadInput(
            Problem(f"cannot use {root} as the agent's root: {error.strerror}; use another root with --root DIR")
        ) from error
    opened.callback(lock.release)


def _sources(
    wanted: Standalone, clock: Clock, objects: LocalObjects, journal: Journal, report: Report | None
) -> tuple[FileSource | HttpSource, ...]:
    config = wanted.config
    paths = (*wanted.paths, *([Path(config.static_pod_path)] if config.static_pod_path else []))
    files = FileSource(
        paths,
        wanted.node_name,
        clock,
        objects=objects,
        period_seconds=_seconds(config.file_check_frequency, PERIOD_SECONDS),
        report=report,
        notes=manifest_notes(journal, FILE_SOURCE, wanted.node_name, keep_secrets=wanted.keep_secrets),
    )
    if not config.static_pod_url:
        return (files,)
    web = HttpSource(
        config.static_pod_url,
        wanted.node_name,
        clock,
        headers=config.static_pod_url_header,
        objects=objects,
        period_seconds=_seconds(config.http_check_frequency, PERIOD_SECONDS),
        report=report,
        notes=manifest_notes(journal, HTTP_SOURCE, wanted.node_name, keep_secrets=wanted.keep_secrets),
    )
    return files, web


def _settings(wanted: Standalone, parts: Machinery) -> Settings:
    node = machine_node(wanted)
    return Settings(
        node=replace(node, status=replace(node.status, features=parts.features, runtime_handlers=parts.handlers)),
        host_ips=(host_ip(),),
        log_root=str(wanted.log_root),
        log_policy=_log_policy(wanted.config),
        timing=Timing(resync_seconds=_seconds(wanted.config.sync_frequency, USUAL_TIMING.resync_seconds)),
        restart_curve=_restart_curve(wanted.config),
        runtime_limits=limits_of(wanted.config),
        verification=verification_of(wanted.config),
        image_gc=gc_policy_of(wanted.config),
        container_gc_seconds=CONTAINER_GC_SECONDS,
        enforcement=parts.enforcement,
        cluster_domain=wanted.config.cluster_domain or "cluster.local",
        lookup=_lookup(with_defaults(wanted.config)) if wanted.runtime == "cri" else None,
    )


def _lookup(config: KubeletConfiguration) -> NameLookup:
    cluster = ClusterNames(tuple(config.cluster_dns or ()), config.cluster_domain or "", joined=False)
    return NameLookup(cluster, config.resolv_conf or "", (host_ip(),))


def machine_node(wanted: Standalone) -> Node:
    """Return this machine as a node, with its capacity."""
    cores = os.cpu_count() or 1
    most = wanted.config.max_pods if wanted.config.max_pods is not None else DEFAULT_MAX_PODS
    if wanted.config.pods_per_core:
        most = min(most, wanted.config.pods_per_core * cores)
    memory_kib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    return simple_node(wanted.node_name, cpu=str(cores), memory=f"{memory_kib}Ki", pods=most)


def _restart_curve(config: KubeletConfiguration) -> Curve:
    longest = config.crash_loop_back_off.max_container_restart_period
    return DEFAULT_CURVE.tuned(maximum=timedelta(seconds=seconds_of(longest))) if longest else DEFAULT_CURVE


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


def _seconds(wanted: Duration | None, usual: float) -> float:
    """Return a configured period. As in the kubelet, no value and zero mean the default."""
    return (seconds_of(wanted) if wanted else 0.0) or usual


def host_ip() -> str:
    """Return the source address of this machine's default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # For UDP, connect() only looks up the route and sends nothing. The address is reserved for documentation.
            asking.connect(("192.0.2.1", 9))
            return str(asking.getsockname()[0])
        except OSError:
            return "127.0.0.1"
