"""Counting and measuring the engine, under the reference's names, so that its dashboards go on working.

Rooms tell what happened (`relisted`, `pass_ended`, `probed`); each declares for itself what it tells, and `Metrics` is
made to fit them all. `exposition` writes the text that Prometheus scrapes, as the reference writes it. The names
are in `model/engine_metrics.py`.

* One registry per `Metrics`: nothing is global, so that many agents can live in one process.
* Telling is cheap: series are looked up once and kept.
* What is counted per pod (`prober_*`) ends with the pod, and is kept in columns: the library's histograms would cost
  some KiB per pod.
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
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.rules.housekeeping import Plan, Sight, is_active
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import KnownPod, Stage

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TOTAL: Final = "_total"


class Metrics(Observer):
    """Counts and measures the engine."""

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
        self._known: Mapping[PodUID, KnownPod] = {}
        self._sight: Sight | None = None
        self._probes = _ProbeSeries()

    def exposition(self) -> bytes:
        """Everything, as Prometheus reads it."""
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
        """A pod's worker begins with it."""
        self._measure(of.CONTAINERS_PER_POD, len(pod.spec.containers))

    def pass_begun(self, update_type: UpdateType, waited_seconds: float) -> None:
        """A pass begins, so long after its news."""
        self._measure(of.PASS_WAITS, waited_seconds, update_type)

    def pass_ended(self, operation: str, seconds: float) -> None:
        """A pass ended, so long after its news."""
        self._measure(of.PASSES, seconds, operation)

    def first_pass(self, seconds: float) -> None:
        """A pod's first pass begins, so long after it was first seen."""
        self._measure(of.FIRST_PASSES, seconds)

    def running(self, seconds: float) -> None:
        """A pod runs, so long after it was first seen."""
        self._measure(of.POD_STARTS, seconds)

    def all_started(self, sli_seconds: float, total_seconds: float) -> None:
        """All containers of a pod have started, so long after its creation: without, and with, pulls and init."""
        self._measure(of.POD_START_SLI, sli_seconds)
        self._measure(of.POD_START_TOTAL, total_seconds)

    def status_synced(self, seconds: float) -> None:
        """The API has a status, so long after it changed."""
        self._measure(of.STATUS_SYNCS, seconds)

    def queued(self, name: str, depth: int) -> None:
        """Something was put into a queue, which holds so many now."""
        self._count(of.QUEUE_ADDS, name)
        self._set(of.QUEUE_DEPTH, name, to=depth)

    def requeued(self, name: str) -> None:
        """What was put into a queue is there because it failed."""
        self._count(of.QUEUE_RETRIES, name)

    def dequeued(self, name: str, depth: int, late_seconds: float) -> None:
        """Something was taken from a queue, so long after it was due."""
        self._measure(of.QUEUE_WAITS, late_seconds, name)
        self._set(of.QUEUE_DEPTH, name, to=depth)

    # Runtime and PLEG.

    def runtime_call(self, operation: str, seconds: float, *, failed: bool) -> None:
        """A call of the runtime has ended."""
        self._count(of.CALLS, operation)
        self._measure(of.CALL_TIMES, seconds, operation)
        if failed:
            self._count(of.CALL_ERRORS, operation)

    def slow_calls(self, count: int) -> None:
        """So many calls are slow now."""
        self._set(of.SLOW_CALLS, to=count)

    def pulled(self, seconds: float, size_bytes: int) -> None:
        """An image was pulled, for one pod that waited so long."""
        self._measure(of.PULLS, seconds, of.image_size_label(size_bytes))

    def image_removed(self, reason: str) -> None:
        """An image was removed: for its `age`, or for `space`."""
        self._count(of.IMAGES_REMOVED, reason)

    def start_begun(self, kind: str) -> None:
        """A container is to be started: `container`, `init_container` or `ephemeral_container`."""
        self._count(of.CONTAINER_STARTS, kind)

    def start_failed(self, kind: str, reason: str) -> None:
        """A container could not be started, for the reason that its status shows."""
        self._count(of.CONTAINER_ERRORS, kind, reason)

    def sandbox_begun(self) -> None:
        """A sandbox is to be made."""
        self._count(of.SANDBOX_STARTS)

    def sandbox_failed(self) -> None:
        """A sandbox could not be made."""
        self._count(of.SANDBOX_ERRORS)

    def relisted(self, seconds: float, interval_seconds: float | None) -> None:
        """A relist has ended, so long after the begin of the last good one."""
        self._measure(of.RELISTS, seconds)
        if interval_seconds is not None:
            self._measure(of.RELIST_INTERVALS, interval_seconds)

    def listed(self, pods: Sequence[PodRecord], now: datetime) -> None:
        """A relist has seen these pods."""
        states = Tally(container.state for record in pods for container in record.containers)
        for state in ContainerState:
            self._set(of.RUNNING_CONTAINERS, state, to=states[state])
        self._set(of.RUNNING_PODS, to=sum(any(sandbox.ready for sandbox in record.sandboxes) for record in pods))
        self._set(of.LAST_SEEN, to=now.timestamp())

    def looked(self, seconds: float) -> None:
        """A look at one pod has ended."""
        self._measure(of.LOOKS, seconds)

    def missed(self, pods: int) -> None:
        """So many pods had changed and no event had said so."""
        self._count(of.MISSED_EVENTS, by=pods)

    def discarded(self) -> None:
        """A lifecycle event could not be handed on."""
        self._count(of.DISCARDED_EVENTS)

    def heard(self, latency_seconds: float) -> None:
        """An event of the runtime came so late."""
        self._measure(of.EVENT_LATENCY, latency_seconds)

    def stream_opened(self) -> None:
        """The event stream was asked for."""
        self._count(of.STREAMS)

    def stream_broke(self) -> None:
        """The event stream has ended or failed."""
        self._count(of.STREAM_BREAKS)

    # The node's pods.

    def working(self, known: Mapping[PodUID, KnownPod]) -> None:
        """All workers there are; they are counted when somebody asks."""
        self._known = known

    def kept_house(self, sight: Sight, plan: Plan) -> None:
        """Housekeeping has seen this, which is counted when somebody asks, and does that."""
        self._sight = sight
        self._count(of.ORPHANED_PODS, by=len(plan.orphan_kills))
        for update in plan.restarts:
            self._count(of.RESTARTED_PODS, _if_static(update.pod is not None and is_static_pod(update.pod)))

    def _count_workers(self) -> None:
        counts = Tally((worker.stage, *_config_of(worker)) for worker in self._known.values())
        for stage in Stage:
            for config, static in _CONFIGS:
                self._set(of.WORKING_PODS, stage, config, static, to=counts[stage, config, static])

    def _count_pods(self) -> None:
        if (sight := self._sight) is None:
            return
        answers = _FromSweep(sight.known)
        desired, active, ephemeral = Tally[str](), Tally[str](), 0
        for pod, _ in sight.desired:
            static = _if_static(is_static_pod(pod))
            desired[static] += 1
            active[static] += is_active(pod, sight.phases.get(PodUID(pod.metadata.uid or "")), answers)
            ephemeral += len(pod.spec.ephemeral_containers or ())
        for static in ("", "true"):
            self._set(of.DESIRED_PODS, static, to=desired[static])
            self._set(of.ACTIVE_PODS, static, to=active[static])
        self._set(of.EPHEMERAL_CONTAINERS, to=ephemeral)
        self._set(of.MIRROR_PODS, to=len(sight.mirrors))

    def rejected(self, reason: str) -> None:
        """A pod was turned away."""
        self._count(of.REJECTIONS, of.rejection_label(reason))

    def preempted(self, resource: str) -> None:
        """A pod was killed for want of a resource."""
        self._count(of.PREEMPTIONS, resource)

    def evicted(self, signal: str) -> None:
        """A pod was evicted for a signal."""
        self._count(of.EVICTIONS, signal)

    # Probes.

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        """A probe was executed."""
        self._probes.count(pod, container, kind, result, seconds)

    def gone(self, pod: Pod, container: str, kind: ProbeKind) -> None:
        """A probe worker ended: its series end too."""
        self._probes.forget(PodUID(pod.metadata.uid or ""), (container, kind))

    def forget_pod(self, uid: PodUID) -> None:
        """A pod is gone, and with it all that was counted of it alone."""
        self._probes.forget_pod(uid)


# The node's pods, in labels.

_OF_NOBODY: Final = ("runtime_only", "unknown")
_CONFIGS: Final = (("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true"), _OF_NOBODY)


def _config_of(worker: KnownPod) -> tuple[str, str]:
    if not worker.has_config:
        return _OF_NOBODY
    return "orphan" if worker.orphan else "desired", _if_static(worker.static)


def _if_static(static: bool) -> str:
    return "true" if static else ""


class _FromSweep:
    """What the workers said of themselves when housekeeping came by, as answers to `is_active`."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[PodUID, KnownPod]) -> None:
        self._known = known

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        worker = self._known.get(uid)
        return worker is not None and worker.stage is Stage.TERMINATED

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        worker = self._known.get(uid)
        return worker is not None and worker.stage is not Stage.SYNC

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        raise AssertionError(f"nobody counts mirrors such as {full_name} by what their static pod does")


# Probes, per pod.

_RESULTS: Final = {ProbeResult.SUCCESS: "successful", ProbeResult.FAILURE: "failed", ProbeResult.UNKNOWN: "unknown"}
_COLUMNS: Final = {result: column for column, result in enumerate(_RESULTS)}
_BOUNDS: Final = of.PROBE_TIMES.bounds


class _Probe:
    """What one probe of one container said, and how long its answers took."""

    __slots__ = ("buckets", "namespace", "pod", "results", "seconds")

    def __init__(self, pod: Pod) -> None:
        self.pod, self.namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        self.results = array("L", bytes(len(_RESULTS) * array("L").itemsize))
        self.buckets = array("L", bytes((len(_BOUNDS) + 1) * array("L").itemsize))
        self.seconds = 0.0


class _ProbeSeries:
    """All probes of all pods."""

    def __init__(self) -> None:
        self._pods: dict[PodUID, dict[tuple[str, ProbeKind], _Probe]] = {}

    def count(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        probes = self._pods.setdefault(PodUID(pod.metadata.uid or ""), {})
        probe = probes.get((container, kind))
        if probe is None:
            probe = probes[container, kind] = _Probe(pod)
        probe.results[_COLUMNS[result]] += 1
        if result is not ProbeResult.FAILURE:  # as the reference does: how long a failure took is a matter of timeouts
            probe.buckets[bisect_left(_BOUNDS, seconds)] += 1
            probe.seconds += seconds

    def forget(self, uid: PodUID, key: tuple[str, ProbeKind]) -> None:
        probes = self._pods.get(uid, {})
        probes.pop(key, None)
        if not probes:
            self._pods.pop(uid, None)

    def forget_pod(self, uid: PodUID) -> None:
        self._pods.pop(uid, None)

    def lines(self) -> Iterator[str]:
        """The text of both families. One piece per probe: at 10,000 pods every line by itself takes a second."""
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


def _labels_of(container: str, kind: ProbeKind, probe: _Probe) -> str:
    container, namespace, pod = map(_escaped, (container, probe.namespace, probe.pod))
    return f'container="{container}",namespace="{namespace}",pod="{pod}",probe_type="{kind.value.capitalize()}"'


def _histogram_text(labels: str, probe: _Probe) -> str:
    name, below = of.PROBE_TIMES.name, [*accumulate(probe.buckets)]
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {n}\n' for bound, n in zip(_BOUND_TEXTS, below, strict=True)]
    return f"{''.join(lines)}{name}_sum{{{labels}}} {probe.seconds!r}\n{name}_count{{{labels}}} {below[-1]}\n"


# The text that Prometheus reads.


def _lines(families: Iterable[Metric]) -> Iterator[str]:
    """The text format. Not the library's: that one knows no counter without `_total`, and adds `_created` to each."""
    names = {family.name for family in of.families()}
    for family in families:
        # The library takes the suffix from a counter's name; the catalogue knows who has one.
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
