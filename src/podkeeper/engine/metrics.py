"""Metrics of the engine under the kubelet's names, so that dashboards for the kubelet keep working.

Input: the reports of `Observer`, which documents them. Output: `exposition`, the text that Prometheus scrapes, in the
kubelet's format. `model/engine_metrics.py` has the names.

* One registry per `Metrics`: nothing is global, so that many agents can run in one process.
* Reports are cheap: each series is looked up once and kept.
* Series of a single probe (`prober_*`) are dropped with the probe. They are stored as plain numbers, because the
  library's histogram needs several KiB.
"""

from array import array
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from podkeeper.engine.observer import Observer
from podkeeper.model import engine_metrics as of
from podkeeper.model.engine_metrics import CounterFamily, GaugeFamily, HistogramFamily
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID, ProbeKind, ProbeResult
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.rules.housekeeping import CleanupInput, CleanupPlan, is_active
from podkeeper.rules.static.mirror import is_static_pod
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync

_TOTAL: Final = "_total"


class Metrics(Observer):
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[tuple[CounterFamily, tuple[str, ...]], Counter] = {}
        self._gauges: dict[tuple[GaugeFamily, tuple[str, ...]], Gauge] = {}
        self._histograms: dict[tuple[HistogramFamily, tuple[str, ...]], Histogram] = {}
        for family in of.families():
            if family in (of.PROBES, of.PROBE_TIMES):
                continue
            match family:  # the series without labels is the parent of all others
                case CounterFamily(name, text, labels):
                    self._counters[family, ()] = Counter(name, text, labels, registry=self.registry)
                case GaugeFamily(name, text, labels):
                    self._gauges[family, ()] = Gauge(name, text, labels, registry=self.registry)
                case HistogramFamily(name, text, labels, bounds):
                    self._histograms[family, ()] = Histogram(name, text, labels, registry=self.registry, buckets=bounds)
        self._known: Mapping[PodUID, PodWorkerSync] = {}
        self._cleanup_input: CleanupInput | None = None
        self._probes = _ProbeSeries()

    def exposition(self) -> bytes:
        """Return all series in the Prometheus text format."""
        self._count_workers()
        self._count_pods()
        return "".join([*_lines(self.registry.collect()), *self._probes.lines()]).encode()

    def _count(self, family: CounterFamily, *labels: str, by: int = 1) -> None:
        series = self._counters.get((family, labels))
        if series is None:
            series = self._counters[family, labels] = self._counters[family, ()].labels(*labels)
        series.inc(by)

    def _set(self, family: GaugeFamily, *labels: str, to: float) -> None:
        series = self._gauges.get((family, labels))
        if series is None:
            series = self._gauges[family, labels] = self._gauges[family, ()].labels(*labels)
        series.set(to)

    def _measure(self, family: HistogramFamily, amount: float, *labels: str) -> None:
        series = self._histograms.get((family, labels))
        if series is None:
            series = self._histograms[family, labels] = self._histograms[family, ()].labels(*labels)
        series.observe(amount)

    # Pod workers, syncer, status.

    def pod_started(self, pod: Pod) -> None:
        self._measure(of.CONTAINERS_PER_POD, len(pod.spec.containers))

    def sync_started(self, update_type: UpdateType, waited_seconds: float) -> None:
        self._measure(of.POD_WORKER_WAIT, waited_seconds, update_type)

    def sync_ended(self, operation: str, seconds: float) -> None:
        self._measure(of.POD_WORKER_DURATION, seconds, operation)

    def first_sync_started(self, seconds: float) -> None:
        self._measure(of.POD_WORKER_START, seconds)

    def pod_running(self, seconds: float) -> None:
        self._measure(of.POD_STARTS, seconds)

    def status_synced(self, seconds: float) -> None:
        self._measure(of.STATUS_SYNCS, seconds)

    # Runtime and PLEG.

    def runtime_call(self, operation: str, seconds: float, *, failed: bool) -> None:
        self._count(of.CALLS, operation)
        self._measure(of.CALL_TIMES, seconds, operation)
        if failed:
            self._count(of.CALL_ERRORS, operation)

    def slow_calls(self, count: int) -> None:
        self._set(of.SLOW_CALLS, to=count)

    def image_pulled(self, seconds: float, size_bytes: int) -> None:
        self._measure(of.PULLS, seconds, of.image_size_label(size_bytes))

    def image_removed(self, reason: str) -> None:
        self._count(of.IMAGES_REMOVED, reason)

    def container_starting(self, kind: str) -> None:
        self._count(of.CONTAINER_STARTS, kind)

    def container_start_failed(self, kind: str, reason: str) -> None:
        self._count(of.CONTAINER_ERRORS, kind, reason)

    def sandbox_starting(self) -> None:
        self._count(of.SANDBOX_STARTS)

    def sandbox_failed(self) -> None:
        self._count(of.SANDBOX_ERRORS)

    def relisted(self, seconds: float, interval_seconds: float | None) -> None:
        self._measure(of.RELISTS, seconds)
        if interval_seconds is not None:
            self._measure(of.RELIST_INTERVALS, interval_seconds)

    def pods_listed(self, pods: Sequence[PodRecord], now: datetime) -> None:
        states = Tally(container.state for record in pods for container in record.containers)
        for state in RecordState:
            self._set(of.RUNNING_CONTAINERS, state, to=states[state])
        self._set(of.RUNNING_PODS, to=sum(any(sandbox.ready for sandbox in record.sandboxes) for record in pods))
        self._set(of.LAST_SEEN, to=now.timestamp())

    def inspected(self, seconds: float) -> None:
        self._measure(of.INSPECTIONS, seconds)

    def events_missed(self, pods: int) -> None:
        self._count(of.MISSED_EVENTS, by=pods)

    def event_discarded(self) -> None:
        self._count(of.DISCARDED_EVENTS)

    def event_received(self, latency_seconds: float) -> None:
        self._measure(of.EVENT_LATENCY, latency_seconds)

    def stream_opened(self) -> None:
        self._count(of.STREAMS)

    def stream_ended(self) -> None:
        self._count(of.STREAM_BREAKS)

    # The node's pods.

    def workers_listed(self, known: Mapping[PodUID, PodWorkerSync]) -> None:
        self._known = known

    def pods_cleaned_up(self, cleanup_input: CleanupInput, plan: CleanupPlan) -> None:
        self._cleanup_input = cleanup_input
        self._count(of.ORPHANED_PODS, by=len(plan.orphan_kills))
        for update in plan.restarts:
            self._count(of.RESTARTED_PODS, _if_static(update.pod is not None and is_static_pod(update.pod)))

    def _count_workers(self) -> None:
        counts = Tally((worker.state, *_config_of(worker)) for worker in self._known.values())
        for state in PodWorkerState:
            for config, static in _CONFIGS:
                self._set(of.WORKING_PODS, state, config, static, to=counts[state, config, static])

    def _count_pods(self) -> None:
        if (cleanup_input := self._cleanup_input) is None:
            return
        answers = _FromHousekeeping(cleanup_input.known)
        desired, active, ephemeral = Tally[str](), Tally[str](), 0
        for pod, _ in cleanup_input.desired:
            static = _if_static(is_static_pod(pod))
            desired[static] += 1
            active[static] += is_active(pod, cleanup_input.phases.get(PodUID(pod.metadata.uid or "")), answers)
            ephemeral += len(pod.spec.ephemeral_containers or ())
        for static in ("", "true"):
            self._set(of.DESIRED_PODS, static, to=desired[static])
            self._set(of.ACTIVE_PODS, static, to=active[static])
        self._set(of.EPHEMERAL_CONTAINERS, to=ephemeral)
        self._set(of.MIRROR_PODS, to=len(cleanup_input.mirrors))

    def rejected(self, reason: str) -> None:
        self._count(of.REJECTIONS, of.rejection_label(reason))

    def preempted(self, resource: str) -> None:
        self._count(of.PREEMPTIONS, resource)

    def evicted(self, signal: str) -> None:
        self._count(of.EVICTIONS, signal)

    # Probes.

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        self._probes.count(pod, container, kind, result, seconds)

    def probe_removed(self, pod: Pod, container: str, kind: ProbeKind) -> None:
        self._probes.forget(PodUID(pod.metadata.uid or ""), (container, kind))


# The node's pods, in labels.

_RUNTIME_ONLY: Final = ("runtime_only", "unknown")
_CONFIGS: Final = (("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true"), _RUNTIME_ONLY)


def _config_of(worker: PodWorkerSync) -> tuple[str, str]:
    if not worker.has_config:
        return _RUNTIME_ONLY
    return "orphan" if worker.orphan else "desired", _if_static(worker.static)


def _if_static(static: bool) -> str:
    return "true" if static else ""


class _FromHousekeeping:
    """The worker states of the last housekeeping, in the form that `is_active` needs."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[PodUID, PodWorkerSync]) -> None:
        self._known = known

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        worker = self._known.get(uid)
        return worker is not None and worker.state is PodWorkerState.TERMINATED

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        worker = self._known.get(uid)
        return worker is not None and worker.state is not PodWorkerState.SYNC

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        raise AssertionError(f"`is_active` must not query mirror pods: {full_name}")


# Probes, per pod.

_RESULTS: Final = {ProbeResult.SUCCESS: "successful", ProbeResult.FAILURE: "failed", ProbeResult.UNKNOWN: "unknown"}
_COLUMNS: Final = {result: column for column, result in enumerate(_RESULTS)}
_BOUNDS: Final = of.PROBE_TIMES.bounds


class _ProbeTotals:
    """Results and durations of one probe of one container."""

    __slots__ = ("buckets", "namespace", "pod", "results", "seconds")

    def __init__(self, pod: Pod) -> None:
        self.pod, self.namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        self.results = array("L", bytes(len(_RESULTS) * array("L").itemsize))
        self.buckets = array("L", bytes((len(_BOUNDS) + 1) * array("L").itemsize))
        self.seconds = 0.0


class _ProbeSeries:
    def __init__(self) -> None:
        self._pods: dict[PodUID, dict[tuple[str, ProbeKind], _ProbeTotals]] = {}

    def count(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        probes = self._pods.setdefault(PodUID(pod.metadata.uid or ""), {})
        probe = probes.get((container, kind))
        if probe is None:
            probe = probes[container, kind] = _ProbeTotals(pod)
        probe.results[_COLUMNS[result]] += 1
        if result is not ProbeResult.FAILURE:  # as in the kubelet: the duration of a failure is often the timeout
            probe.buckets[bisect_left(_BOUNDS, seconds)] += 1
            probe.seconds += seconds

    def forget(self, uid: PodUID, key: tuple[str, ProbeKind]) -> None:
        probes = self._pods.get(uid, {})
        probes.pop(key, None)
        if not probes:
            self._pods.pop(uid, None)

    def lines(self) -> Iterator[str]:
        """Yield the text of both families, one string per probe.

        Yielding single lines would take a second with 10,000 pods.
        """
        yield _head(of.PROBES.name, of.PROBES.help, "counter")
        for uid, probes in self._pods.items():
            for (container, kind), probe in probes.items():
                labels = _labels_of(container, kind, probe)
                for result, count in zip(_RESULTS.values(), probe.results, strict=True):
                    if count:
                        yield f'{of.PROBES.name}{{{labels},pod_uid="{_escaped(uid)}",result="{result}"}} {count}\n'
        yield _head(of.PROBE_TIMES.name, of.PROBE_TIMES.help, "histogram")
        for probes in self._pods.values():
            for (container, kind), probe in probes.items():
                if any(probe.buckets):
                    yield _histogram_text(_labels_of(container, kind, probe), probe)


def _labels_of(container: str, kind: ProbeKind, probe: _ProbeTotals) -> str:
    container, namespace, pod = map(_escaped, (container, probe.namespace, probe.pod))
    return f'container="{container}",namespace="{namespace}",pod="{pod}",probe_type="{kind.value.capitalize()}"'


def _histogram_text(labels: str, probe: _ProbeTotals) -> str:
    name, below = of.PROBE_TIMES.name, [*accumulate(probe.buckets)]
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {n}\n' for bound, n in zip(_BOUND_TEXTS, below, strict=True)]
    return f"{''.join(lines)}{name}_sum{{{labels}}} {probe.seconds!r}\n{name}_count{{{labels}}} {below[-1]}\n"


# The text that Prometheus reads.


def _lines(families: Iterable[Metric]) -> Iterator[str]:
    """Yield the text format. The library's writer appends `_total` to all counters and adds `_created` series."""
    names = {family.name for family in of.families()}
    for family in families:
        # The library removes the suffix from a counter's name. The catalogue has the full names.
        bare = family.type != "counter" or family.name in names
        shown = family.name if bare else f"{family.name}{_TOTAL}"
        yield _head(shown, family.documentation, family.type)
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            name = family.name if family.type == "counter" and bare else sample.name
            yield f"{name}{_braced(sample.labels)} {_number(sample.value)}\n"


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _braced(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    texts = [f'{name}="{_escaped(labels[name])}"' for name in sorted(labels) if name != "le"]
    if "le" in labels:
        texts.append(f'le="{labels["le"].removesuffix(".0")}"')
    return "{" + ",".join(texts) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


_BOUND_TEXTS: Final = (*map(_number, _BOUNDS), "+Inf")
