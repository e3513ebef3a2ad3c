"""Metrics under the reference's names, in the format that Prometheus reads, fit for all who tell."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from podkeeper.engine import executor, guard, housekeeping, images, pleg, probes, syncer, workers
from podkeeper.engine.metrics import Metrics
from podkeeper.model import engine_metrics as of
from podkeeper.model.engine_metrics import CounterFamily, GaugeFamily, HistogramFamily
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_SOURCE_ANNOTATION, PodUID, ProbeKind, ProbeResult
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.rules.housekeeping import Plan, Sight
from podkeeper.rules.worker.updates import Update, UpdateType
from podkeeper.rules.worker.workers import KnownPod, Stage

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str, *, source: str = "api", phase: str = "Running", ephemeral: int = 0) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="ns", uid=f"uid-{name}", annotations={CONFIG_SOURCE_ANNOTATION: source}
        ),
        spec=PodSpec(
            containers=(Container(name="c"),),
            ephemeral_containers=tuple(EphemeralContainer(name=f"e{number}") for number in range(ephemeral)),
        ),
        status=PodStatus(phase=phase),
    )


WEB = pod("web")


def samples(metrics: Metrics) -> dict[str, float]:
    """`name{label=value,...}` to value. Read by hand: the library's reader renames counters."""
    found = {}
    for line in metrics.exposition().decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, brace, labels = series.replace('"', "").rstrip("}").partition("{")
            found[f"{name}{{{','.join(sorted(labels.split(',')))}}}" if brace else name] = float(value)
    return found


# What is told, and what it comes to.

TYPE = "probe_type=Liveness"
PROBE = f"container=c,namespace=ns,pod=web,{TYPE}"
TOLD: dict[str, tuple[list[Callable[[Metrics], object]], dict[str, float]]] = {
    "a pass": (
        [lambda m: m.pass_ended("sync", 0.3)],
        {
            "kubelet_pod_worker_duration_seconds_bucket{le=0.25,operation_type=sync}": 0,
            "kubelet_pod_worker_duration_seconds_bucket{le=0.5,operation_type=sync}": 1,
            "kubelet_pod_worker_duration_seconds_bucket{le=+Inf,operation_type=sync}": 1,
            "kubelet_pod_worker_duration_seconds_sum{operation_type=sync}": 0.3,
        },
    ),
    "a pass that begins": (
        [lambda m: m.pass_begun(UpdateType.CREATE, 0.1)],
        {"podkeeper_pod_worker_wait_seconds_count{operation_type=create}": 1},
    ),
    "a pod that is begun with": ([lambda m: m.pod_started(WEB)], {"kubelet_containers_per_pod_count_sum": 1}),
    "a first pass": ([lambda m: m.first_pass(0.1)], {"kubelet_pod_worker_start_duration_seconds_sum": 0.1}),
    "a pod that runs": ([lambda m: m.running(2.5)], {"kubelet_pod_start_duration_seconds_bucket{le=3}": 1}),
    "a pod whose containers have all started": (
        [lambda m: m.all_started(1.0, 9.0)],
        {"kubelet_pod_start_sli_duration_seconds_sum": 1, "kubelet_pod_start_total_duration_seconds_sum": 9},
    ),
    "a status that the API has": (
        [lambda m: m.status_synced(0.02)],
        {"kubelet_pod_status_sync_duration_seconds_bucket{le=0.05}": 1},
    ),
    "a queue": (
        [lambda m: m.queued("pods", 2), lambda m: m.requeued("pods"), lambda m: m.dequeued("pods", 1, 0.5)],
        {
            "workqueue_adds_total{name=pods}": 1,
            "workqueue_retries_total{name=pods}": 1,
            "workqueue_depth{name=pods}": 1,
            "workqueue_queue_duration_seconds_sum{name=pods}": 0.5,
        },
    ),
    "a call that succeeds": (
        [lambda m: m.runtime_call("start_container", 0.004, failed=False)],
        {
            "kubelet_runtime_operations_total{operation_type=start_container}": 1,
            "kubelet_runtime_operations_duration_seconds_bucket{le=0.005,operation_type=start_container}": 1,
        },
    ),
    "a call that fails": (
        [lambda m: m.runtime_call("start_container", 0.1, failed=True)],
        {"kubelet_runtime_operations_errors_total{operation_type=start_container}": 1},
    ),
    "slow calls": ([lambda m: m.slow_calls(3)], {"podkeeper_slow_calls": 3}),
    "a pull": (
        [lambda m: m.pulled(7.0, 700 * 2**20)],
        {"kubelet_image_pull_duration_seconds_sum{image_size_in_bytes=500MB-1GB}": 7},
    ),
    "a pull of an image of unknown size": (
        [lambda m: m.pulled(7.0, 0)],
        {"kubelet_image_pull_duration_seconds_count{image_size_in_bytes=N/A}": 1},
    ),
    "a start": (
        [
            Metrics.sandbox_begun,
            lambda m: m.start_begun("container"),
            lambda m: m.start_failed("container", "ErrImagePull"),
        ],
        {
            "kubelet_started_pods_total": 1,
            "kubelet_started_pods_errors_total": 0,
            "kubelet_started_containers_total{container_type=container}": 1,
            "kubelet_started_containers_errors_total{code=ErrImagePull,container_type=container}": 1,
        },
    ),
    "a sandbox that is not made": ([Metrics.sandbox_failed], {"kubelet_started_pods_errors_total": 1}),
    "the first relist": (
        [lambda m: m.relisted(0.01, None)],
        {"kubelet_pleg_relist_duration_seconds_count": 1, "kubelet_pleg_relist_interval_seconds_count": 0},
    ),
    "a later relist": ([lambda m: m.relisted(0.01, 60.0)], {"kubelet_pleg_relist_interval_seconds_sum": 60}),
    "a listing": (
        [
            lambda m: m.listed(
                [
                    PodRecord(
                        uid="a",
                        sandboxes=(SandboxRecord(id="s", ready=True), SandboxRecord(id="t", ready=True)),
                        containers=(
                            ContainerRecord(id="1", name="c", state=ContainerState.RUNNING),
                            ContainerRecord(id="2", name="d", state=ContainerState.EXITED),
                        ),
                    ),
                    PodRecord(uid="b", sandboxes=(SandboxRecord(id="u", ready=False),)),
                ],
                NOW,
            )
        ],
        {
            "kubelet_running_pods": 1,
            "kubelet_running_containers{container_state=running}": 1,
            "kubelet_running_containers{container_state=exited}": 1,
            "kubelet_running_containers{container_state=unknown}": 0,
            "kubelet_pleg_last_seen_seconds": NOW.timestamp(),
        },
    ),
    "what PLEG hears": (
        [
            lambda m: m.looked(0.1),
            lambda m: m.missed(2),
            Metrics.discarded,
            lambda m: m.heard(0.2),
            Metrics.stream_opened,
            Metrics.stream_broke,
        ],
        {
            "podkeeper_pleg_look_duration_seconds_count": 1,
            "podkeeper_pleg_missed_events_total": 2,
            "kubelet_pleg_discard_events": 1,
            "kubelet_evented_pleg_connection_latency_seconds_sum": 0.2,
            "kubelet_evented_pleg_connection_success_count": 1,
            "kubelet_evented_pleg_connection_error_count": 1,
        },
    ),
    "the workers": (
        [
            lambda m: m.working(
                {
                    PodUID("1"): KnownPod(Stage.SYNC, orphan=False, has_config=True, static=True),
                    PodUID("2"): KnownPod(Stage.SYNC, orphan=False, has_config=True, static=False),
                    PodUID("3"): KnownPod(Stage.TERMINATED, orphan=True, has_config=True, static=False),
                    PodUID("4"): KnownPod(Stage.TERMINATING, orphan=True, has_config=False, static=False),
                }
            )
        ],
        {
            "kubelet_working_pods{config=desired,lifecycle=sync,static=true}": 1,
            "kubelet_working_pods{config=desired,lifecycle=sync,static=}": 1,
            "kubelet_working_pods{config=orphan,lifecycle=terminated,static=}": 1,
            "kubelet_working_pods{config=runtime_only,lifecycle=terminating,static=unknown}": 1,
            "kubelet_working_pods{config=orphan,lifecycle=sync,static=}": 0,
        },
    ),
    "pods that are turned away": (
        [
            lambda m: m.rejected("OutOfcpu"),
            lambda m: m.rejected("OutOfexample.com/gpu"),
            lambda m: m.rejected("whatever I like"),
        ],
        {
            "kubelet_admission_rejections_total{reason=OutOfcpu}": 1,
            "kubelet_admission_rejections_total{reason=OutOfExtendedResources}": 1,
            "kubelet_admission_rejections_total{reason=Other}": 1,
        },
    ),
    "pods that make room": (
        [lambda m: m.preempted("cpu"), lambda m: m.evicted("memory.available")],
        {
            "kubelet_preemptions{preemption_signal=cpu}": 1,
            "kubelet_evictions{eviction_signal=memory.available}": 1,
        },
    ),
    "a probe that is answered": (
        [lambda m: m.probed(WEB, "c", ProbeKind.LIVENESS, ProbeResult.SUCCESS, 0.05)],
        {
            f"prober_probe_total{{container=c,namespace=ns,pod=web,pod_uid=uid-web,{TYPE},result=successful}}": 1,
            "prober_probe_duration_seconds_bucket{container=c,le=0.025,namespace=ns,pod=web,probe_type=Liveness}": 0,
            "prober_probe_duration_seconds_bucket{container=c,le=0.05,namespace=ns,pod=web,probe_type=Liveness}": 1,
            "prober_probe_duration_seconds_bucket{container=c,le=+Inf,namespace=ns,pod=web,probe_type=Liveness}": 1,
            f"prober_probe_duration_seconds_sum{{{PROBE}}}": 0.05,
            f"prober_probe_duration_seconds_count{{{PROBE}}}": 1,
        },
    ),
}


@pytest.mark.parametrize("tells, expected", TOLD.values(), ids=TOLD.keys())
def test_told(tells: list[Callable[[Metrics], object]], expected: dict[str, float]) -> None:
    metrics = Metrics()
    for tell in tells:
        tell(metrics)
    found = samples(metrics)
    assert {name: found.get(name) for name in expected} == expected


DEBUGGED, STATIC = pod("web", ephemeral=2), pod("static", source="file")
REJECTED, OVER = pod("rejected", phase="Pending"), pod("over", phase="Succeeded")
SIGHT = Sight(
    desired=[(DEBUGGED, None), (STATIC, DEBUGGED), (REJECTED, None), (OVER, None)],
    mirrors=[DEBUGGED],
    orphaned_mirrors=[],
    known={PodUID("uid-over"): KnownPod(Stage.TERMINATED, orphan=False, has_config=True, static=False)},
    phases={PodUID("uid-rejected"): "Failed"},
)
PLAN = Plan(
    could_run=frozenset(),
    statuses_to_keep=frozenset(),
    directories_to_remove=frozenset(),
    volumes_to_unmount=frozenset(),
    mirrors_to_delete=(),
    restarts=(Update(type=UpdateType.CREATE, pod=STATIC), Update(type=UpdateType.CREATE, pod=DEBUGGED)),
    endings=(),
    orphan_kills=(Update(type=UpdateType.KILL, running_pod=PodRecord(uid="nobody")),),
    cgroups_to_remove=frozenset(),
    cgroups_to_throttle=frozenset(),
)


def test_housekeeping_tells_the_pods_of_the_node() -> None:
    metrics = Metrics()
    metrics.kept_house(SIGHT, PLAN)
    found = samples(metrics)
    expected = {
        "kubelet_desired_pods{static=}": 3,
        "kubelet_desired_pods{static=true}": 1,
        "kubelet_active_pods{static=}": 1,
        "kubelet_active_pods{static=true}": 1,
        "kubelet_mirror_pods": 1,
        "kubelet_managed_ephemeral_containers": 2,
        "kubelet_restarted_pods_total{static=}": 1,
        "kubelet_restarted_pods_total{static=true}": 1,
        "kubelet_orphaned_runtime_pods_total": 1,
    }
    assert {name: found[name] for name in expected} == expected


# Probes, per pod.


def probe_samples(metrics: Metrics) -> list[str]:
    return [name for name in samples(metrics) if name.startswith("prober_")]


def test_a_failed_probe_is_counted_but_not_measured() -> None:
    metrics = Metrics()
    metrics.probed(WEB, "c", ProbeKind.READINESS, ProbeResult.FAILURE, 1.0)
    metrics.probed(WEB, "c", ProbeKind.READINESS, ProbeResult.FAILURE, 1.0)
    (only,) = probe_samples(metrics)
    assert samples(metrics)[only] == 2
    assert "result=failed" in only


def test_a_probes_series_end_with_it_and_a_pods_with_the_pod() -> None:
    metrics = Metrics()
    for kind in ProbeKind:
        metrics.probed(WEB, "c", kind, ProbeResult.SUCCESS, 0.1)
    metrics.probed(pod("db"), "c", ProbeKind.LIVENESS, ProbeResult.SUCCESS, 0.1)
    metrics.gone(WEB, "c", ProbeKind.STARTUP)
    metrics.gone(WEB, "unknown", ProbeKind.STARTUP)
    assert not [name for name in probe_samples(metrics) if "Startup" in name]
    metrics.forget_pod(PodUID("uid-web"))
    metrics.forget_pod(PodUID("uid-nobody"))
    left = probe_samples(metrics)
    assert left
    assert all("pod=db" in name for name in left)
    metrics.gone(pod("db"), "c", ProbeKind.LIVENESS)
    assert probe_samples(metrics) == []


# The format.


def test_every_family_is_written_once_under_its_own_name_and_type() -> None:
    kinds = {CounterFamily: "counter", GaugeFamily: "gauge", HistogramFamily: "histogram"}
    typed = [line for line in Metrics().exposition().decode().splitlines() if line.startswith("# TYPE")]
    assert sorted(typed) == sorted(f"# TYPE {family.name} {kinds[type(family)]}" for family in of.families())


def test_the_text_looks_as_the_reference_writes_it() -> None:
    metrics = Metrics()
    metrics.probed(WEB, "c", ProbeKind.LIVENESS, ProbeResult.SUCCESS, 2.0)
    metrics.relisted(0.5, 1.0)
    lines = metrics.exposition().decode().splitlines()
    assert "kubelet_pleg_discard_events 0" in lines
    assert 'kubelet_pleg_relist_duration_seconds_bucket{le="1"} 1' in lines
    labels = 'container="c",namespace="ns",pod="web",probe_type="Liveness"'
    assert f'prober_probe_duration_seconds_bucket{{{labels},le="2.5"}} 1' in lines
    assert not [line for line in lines if "_created" in line]


def test_labels_are_escaped() -> None:
    metrics, odd = Metrics(), 'a"b\\c\nd'
    metrics.pass_ended(odd, 0.1)
    metrics.probed(WEB, odd, ProbeKind.LIVENESS, ProbeResult.SUCCESS, 0.1)
    families = text_string_to_metric_families(metrics.exposition().decode())
    values = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert odd in values


def test_two_agents_in_one_process_do_not_share_numbers() -> None:
    one, other = Metrics(), Metrics()
    one.discarded()
    assert samples(one)["kubelet_pleg_discard_events"] == 1
    assert samples(other)["kubelet_pleg_discard_events"] == 0


def test_metrics_fit_everybody_who_tells() -> None:
    metrics = Metrics()
    for_pleg: pleg.Observer = metrics
    for_workers: workers.Observer = metrics
    for_syncer: syncer.SyncObserver = metrics
    for_executor: executor.StartObserver = metrics
    for_images: images.PullObserver = metrics
    for_probes: probes.ProbeObserver = metrics
    for_guard: guard.ObserveCall = metrics.runtime_call
    for_housekeeping: housekeeping.Observe = metrics.kept_house
    for_handlers: Callable[[str], None] = metrics.rejected
    for_preemption: Callable[[str], None] = metrics.preempted
    for_status: Callable[[float], None] = metrics.status_synced

    for_pleg.missed(1)
    for_workers.pass_ended("kill", 1.0)
    for_syncer.first_pass(1.0)
    for_executor.sandbox_begun()
    for_images.pulled(1.0, 1)
    for_probes.probed(WEB, "c", ProbeKind.LIVENESS, ProbeResult.FAILURE, 1.0)
    for_guard("stop_container", 0.1, failed=False)
    for_housekeeping(SIGHT, PLAN)
    for_handlers("OutOfpods")
    for_preemption("pods")
    for_status(1.0)
    expected = [
        "podkeeper_pleg_missed_events_total",
        "kubelet_pod_worker_duration_seconds_count{operation_type=kill}",
        "kubelet_pod_worker_start_duration_seconds_count",
        "kubelet_started_pods_total",
        "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=0-10MB}",
        "prober_probe_total{container=c,namespace=ns,pod=web,pod_uid=uid-web,probe_type=Liveness,result=failed}",
        "kubelet_runtime_operations_total{operation_type=stop_container}",
        "kubelet_orphaned_runtime_pods_total",
        "kubelet_admission_rejections_total{reason=OutOfpods}",
        "kubelet_preemptions{preemption_signal=pods}",
        "kubelet_pod_status_sync_duration_seconds_count",
    ]
    found = samples(metrics)
    assert {name: found.get(name) for name in expected} == dict.fromkeys(expected, 1)
