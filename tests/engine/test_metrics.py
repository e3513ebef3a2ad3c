"""Metrics under the kubelet's names, in the Prometheus text format."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families

from podkeeper.engine.metrics import Metrics
from podkeeper.engine.observer import Observer
from podkeeper.model import engine_metrics as of
from podkeeper.model.engine_metrics import CounterFamily, GaugeFamily, HistogramFamily
from podkeeper.model.k8s.core import EphemeralContainer, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID, ProbeKind, ProbeResult
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.housekeeping import CleanupInput, CleanupPlan
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync
from podkeeper.testing import build

NOW = datetime(2026, 1, 1, tzinfo=UTC)


pod = partial(build.pod, namespace="ns", source="api", phase="Running")
DEBUG = (EphemeralContainer(name="e0"), EphemeralContainer(name="e1"))


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


# Reports and their samples.

TYPE = "probe_type=Liveness"
PROBE = f"container=c,namespace=ns,pod=web,{TYPE}"
REPORTS: dict[str, tuple[list[Callable[[Metrics], object]], dict[str, float]]] = {
    "a sync": (
        [lambda m: m.sync_ended("sync", 0.3)],
        {
            "kubelet_pod_worker_duration_seconds_bucket{le=0.25,operation_type=sync}": 0,
            "kubelet_pod_worker_duration_seconds_bucket{le=0.5,operation_type=sync}": 1,
            "kubelet_pod_worker_duration_seconds_bucket{le=+Inf,operation_type=sync}": 1,
            "kubelet_pod_worker_duration_seconds_sum{operation_type=sync}": 0.3,
            "kubelet_pod_worker_duration_seconds_count{operation_type=sync}": 1,
        },
    ),
    "a sync that begins": (
        [lambda m: m.sync_started(UpdateType.CREATE, 0.1)],
        {
            "podkeeper_pod_worker_wait_seconds_count{operation_type=create}": 1,
            "podkeeper_pod_worker_wait_seconds_sum{operation_type=create}": 0.1,
        },
    ),
    "a started pod": (
        [lambda m: m.pod_started(WEB)],
        {"kubelet_containers_per_pod_count_sum": 1, "kubelet_containers_per_pod_count_count": 1},
    ),
    "a first sync": (
        [lambda m: m.first_sync_started(0.1)],
        {
            "kubelet_pod_worker_start_duration_seconds_sum": 0.1,
            "kubelet_pod_worker_start_duration_seconds_count": 1,
        },
    ),
    "a pod that runs": (
        [lambda m: m.pod_running(2.5)],
        {
            "kubelet_pod_start_duration_seconds_bucket{le=2}": 0,
            "kubelet_pod_start_duration_seconds_bucket{le=3}": 1,
            "kubelet_pod_start_duration_seconds_sum": 2.5,
            "kubelet_pod_start_duration_seconds_count": 1,
        },
    ),
    "a status that the API has": (
        [lambda m: m.status_synced(0.02)],
        {
            "kubelet_pod_status_sync_duration_seconds_bucket{le=0.05}": 1,
            "kubelet_pod_status_sync_duration_seconds_sum": 0.02,
            "kubelet_pod_status_sync_duration_seconds_count": 1,
        },
    ),
    "a call that succeeds": (
        [lambda m: m.runtime_call("start_container", 0.004, failed=False)],
        {
            "kubelet_runtime_operations_total{operation_type=start_container}": 1,
            "kubelet_runtime_operations_duration_seconds_bucket{le=0.005,operation_type=start_container}": 1,
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=start_container}": 0.004,
            "kubelet_runtime_operations_duration_seconds_count{operation_type=start_container}": 1,
        },
    ),
    "a call that fails": (
        [lambda m: m.runtime_call("start_container", 0.1, failed=True)],
        {
            "kubelet_runtime_operations_total{operation_type=start_container}": 1,
            "kubelet_runtime_operations_errors_total{operation_type=start_container}": 1,
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=start_container}": 0.1,
            "kubelet_runtime_operations_duration_seconds_count{operation_type=start_container}": 1,
        },
    ),
    "slow calls": ([lambda m: m.slow_calls(3)], {"podkeeper_slow_calls": 3}),
    "a pull": (
        [lambda m: m.image_pulled(7.0, 700 * 2**20)],
        {
            "kubelet_image_pull_duration_seconds_sum{image_size_in_bytes=500MB-1GB}": 7,
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=500MB-1GB}": 1,
        },
    ),
    "a pull of an image of unknown size": (
        [lambda m: m.image_pulled(7.0, 0)],
        {
            "kubelet_image_pull_duration_seconds_sum{image_size_in_bytes=N/A}": 7,
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=N/A}": 1,
        },
    ),
    "removed images": (
        [lambda m: m.image_removed("age"), lambda m: m.image_removed("space"), lambda m: m.image_removed("space")],
        {
            "kubelet_image_garbage_collected_total{reason=age}": 1,
            "kubelet_image_garbage_collected_total{reason=space}": 2,
        },
    ),
    "a start": (
        [
            Metrics.sandbox_starting,
            lambda m: m.container_starting("container"),
            lambda m: m.container_start_failed("container", "ErrImagePull"),
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
        {
            "kubelet_pleg_relist_duration_seconds_sum": 0.01,
            "kubelet_pleg_relist_duration_seconds_count": 1,
            "kubelet_pleg_relist_interval_seconds_count": 0,
        },
    ),
    "a later relist": (
        [lambda m: m.relisted(0.01, 60.0)],
        {
            "kubelet_pleg_relist_duration_seconds_sum": 0.01,
            "kubelet_pleg_relist_duration_seconds_count": 1,
            "kubelet_pleg_relist_interval_seconds_sum": 60,
            "kubelet_pleg_relist_interval_seconds_count": 1,
        },
    ),
    "a listing": (
        [
            lambda m: m.pods_listed(
                [
                    PodRecord(
                        uid="a",
                        sandboxes=(SandboxRecord(id="s", ready=True), SandboxRecord(id="t", ready=True)),
                        containers=(
                            ContainerRecord(id="1", name="c", state=RecordState.RUNNING),
                            ContainerRecord(id="2", name="d", state=RecordState.EXITED),
                        ),
                    ),
                    PodRecord(uid="b", sandboxes=(SandboxRecord(id="u", ready=False),)),
                    PodRecord(
                        uid="c", sandboxes=(SandboxRecord(id="v", ready=True), SandboxRecord(id="w", ready=False))
                    ),
                ],
                NOW,
            )
        ],
        {
            "kubelet_running_pods": 2,
            "kubelet_running_containers{container_state=running}": 1,
            "kubelet_running_containers{container_state=exited}": 1,
            "kubelet_running_containers{container_state=unknown}": 0,
            "kubelet_pleg_last_seen_seconds": NOW.timestamp(),
        },
    ),
    "reports of the PLEG": (
        [
            lambda m: m.inspected(0.1),
            lambda m: m.events_missed(2),
            Metrics.event_discarded,
            lambda m: m.event_received(0.2),
            Metrics.stream_opened,
            Metrics.stream_ended,
        ],
        {
            "podkeeper_pleg_inspection_duration_seconds_sum": 0.1,
            "podkeeper_pleg_inspection_duration_seconds_count": 1,
            "podkeeper_pleg_missed_events_total": 2,
            "kubelet_pleg_discard_events": 1,
            "kubelet_evented_pleg_connection_latency_seconds_sum": 0.2,
            "kubelet_evented_pleg_connection_latency_seconds_count": 1,
            "kubelet_evented_pleg_connection_success_count": 1,
            "kubelet_evented_pleg_connection_error_count": 1,
        },
    ),
    "the workers": (
        [
            lambda m: m.workers_listed(
                {
                    PodUID("1"): PodWorkerSync(PodWorkerState.SYNC, orphan=False, has_config=True, static=True),
                    PodUID("2"): PodWorkerSync(PodWorkerState.SYNC, orphan=False, has_config=True, static=False),
                    PodUID("3"): PodWorkerSync(PodWorkerState.TERMINATED, orphan=True, has_config=True, static=False),
                    PodUID("4"): PodWorkerSync(PodWorkerState.TERMINATING, orphan=True, has_config=False, static=False),
                    PodUID("5"): PodWorkerSync(PodWorkerState.TERMINATING, orphan=True, has_config=True, static=True),
                    PodUID("6"): PodWorkerSync(PodWorkerState.TERMINATING, orphan=False, has_config=True, static=False),
                    PodUID("7"): PodWorkerSync(PodWorkerState.TERMINATING, orphan=False, has_config=True, static=False),
                }
            )
        ],
        {
            "kubelet_working_pods{config=desired,lifecycle=sync,static=true}": 1,
            "kubelet_working_pods{config=desired,lifecycle=sync,static=}": 1,
            "kubelet_working_pods{config=orphan,lifecycle=terminated,static=}": 1,
            "kubelet_working_pods{config=runtime_only,lifecycle=terminating,static=unknown}": 1,
            "kubelet_working_pods{config=orphan,lifecycle=terminating,static=true}": 1,
            "kubelet_working_pods{config=desired,lifecycle=terminating,static=}": 2,
            "kubelet_working_pods{config=orphan,lifecycle=sync,static=}": 0,
        },
    ),
    "rejected pods": (
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


@pytest.mark.parametrize("reports, expected", REPORTS.values(), ids=REPORTS.keys())
def test_reported_lifecycle_events(reports: list[Callable[[Metrics], object]], expected: dict[str, float]) -> None:
    metrics = Metrics()
    for report in reports:
        report(metrics)
    found = samples(metrics)
    assert {name: found.get(name) for name in expected} == expected
    assert totals(found) == totals(expected)  # and nothing else was counted


def totals(found: dict[str, float]) -> dict[str, float]:
    """The samples that are not zero, without the buckets of histograms."""
    return {name: value for name, value in found.items() if value and "_bucket{" not in name}


def test_repeated_reports_increase_a_counter_and_replace_a_gauge() -> None:
    metrics = Metrics()
    for depth, seconds in ((5, 0.25), (3, 0.5), (4, 1.0)):
        metrics.runtime_call("start_container", seconds, failed=False)
        metrics.events_missed(depth)
        metrics.slow_calls(depth)
    assert totals(samples(metrics)) == {
        "kubelet_runtime_operations_total{operation_type=start_container}": 3,
        "kubelet_runtime_operations_duration_seconds_sum{operation_type=start_container}": 1.75,
        "kubelet_runtime_operations_duration_seconds_count{operation_type=start_container}": 3,
        "podkeeper_pleg_missed_events_total": 12,
        "podkeeper_slow_calls": 4,
    }


def test_a_new_agent_has_counted_nothing() -> None:
    assert totals(samples(Metrics())) == {}


def test_a_new_agent_reports_workers_but_not_yet_the_pods_of_the_node() -> None:
    found = samples(Metrics())
    states, configs = ("sync", "terminating", "terminated"), ("desired", "orphan")
    assert {name for name in found if name.startswith("kubelet_working_pods")} == {
        f"kubelet_working_pods{{config={config},lifecycle={state},static={static}}}"
        for state in states
        for config, static in [
            *((config, static) for config in configs for static in ("", "true")),
            ("runtime_only", "unknown"),
        ]
    }
    assert not [name for name in found if name.startswith(("kubelet_desired_pods{", "kubelet_active_pods{"))]


RUNNING = PodRecord(
    uid="a",
    sandboxes=(SandboxRecord(id="s", ready=True),),
    containers=(ContainerRecord(id="1", name="c", state=RecordState.RUNNING),),
)


def test_a_listing_replaces_the_one_before() -> None:
    metrics = Metrics()
    metrics.pods_listed([RUNNING], NOW)
    metrics.pods_listed([], NOW)
    assert totals(samples(metrics)) == {"kubelet_pleg_last_seen_seconds": NOW.timestamp()}


DEBUGGED, STATIC = pod("web", debug=DEBUG[:2]), pod("static", source="file")
REJECTED, OVER = pod("rejected", phase="Pending"), pod("over", phase="Succeeded")
SIGHT = CleanupInput(
    desired=[(DEBUGGED, None), (STATIC, DEBUGGED), (REJECTED, None), (OVER, None)],
    mirrors=[DEBUGGED],
    orphaned_mirrors=[],
    known={PodUID("uid-over"): PodWorkerSync(PodWorkerState.TERMINATED, orphan=False, has_config=True, static=False)},
    phases={PodUID("uid-rejected"): "Failed"},
)
PLAN = CleanupPlan(
    could_run=frozenset(),
    statuses_to_keep=frozenset(),
    directories_to_remove=frozenset(),
    volumes_to_unmount=frozenset(),
    mirrors_to_delete=(),
    restarts=(build.update(UpdateType.CREATE, STATIC), build.update(UpdateType.CREATE, DEBUGGED)),
    terminations=(),
    orphan_kills=(build.update(UpdateType.KILL, PodRecord(uid="unknown")),),
    cgroups_to_remove=frozenset(),
    cgroups_to_throttle=frozenset(),
)


NO_PLAN = replace(PLAN, restarts=(), orphan_kills=())


def test_housekeeping_reports_the_pods_of_the_node() -> None:
    metrics = Metrics()
    metrics.pods_cleaned_up(SIGHT, PLAN)
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
    assert totals(samples(metrics)) == expected


def cleanup_input(*desired: Pod, state: PodWorkerState | None = None, phase: str | None = None) -> CleanupInput:
    """Return the input of housekeeping: these pods, the state of their workers, and their published phase."""
    uids = [PodUID(each.metadata.uid or "") for each in desired]
    return CleanupInput(
        desired=[(each, None) for each in desired],
        mirrors=[],
        orphaned_mirrors=[],
        known={}
        if state is None
        else {uid: PodWorkerSync(state, orphan=False, has_config=True, static=False) for uid in uids},
        phases={} if phase is None else dict.fromkeys(uids, phase),
    )


@pytest.mark.parametrize(
    "phase, state, active",
    [
        ("Running", None, 1),
        ("Running", PodWorkerState.SYNC, 1),
        ("Running", PodWorkerState.TERMINATING, 1),
        ("Running", PodWorkerState.TERMINATED, 0),
        ("Failed", None, 0),
        ("Failed", PodWorkerState.SYNC, 0),
        ("Failed", PodWorkerState.TERMINATING, 1),
        ("Failed", PodWorkerState.TERMINATED, 0),
    ],
)
def test_a_pod_is_active_until_its_phase_is_terminal_and_its_worker_has_ended(
    phase: str, state: PodWorkerState | None, active: int
) -> None:
    metrics = Metrics()
    metrics.pods_cleaned_up(cleanup_input(WEB, state=state, phase=phase), NO_PLAN)
    found = samples(metrics)
    assert (found["kubelet_desired_pods{static=}"], found["kubelet_active_pods{static=}"]) == (1, active)


def test_pods_are_counted_as_of_the_last_housekeeping() -> None:
    metrics = Metrics()
    nameless = Pod(metadata=ObjectMeta(), spec=PodSpec())
    metrics.pods_cleaned_up(cleanup_input(WEB, DEBUGGED, pod("db", debug=DEBUG[:1]), nameless), PLAN)
    assert totals(samples(metrics)) == {
        "kubelet_desired_pods{static=}": 4,
        "kubelet_active_pods{static=}": 4,
        "kubelet_managed_ephemeral_containers": 3,
        "kubelet_restarted_pods_total{static=}": 1,
        "kubelet_restarted_pods_total{static=true}": 1,
        "kubelet_orphaned_runtime_pods_total": 1,
    }
    metrics.pods_cleaned_up(cleanup_input(), PLAN)
    assert totals(samples(metrics)) == {
        "kubelet_restarted_pods_total{static=}": 2,
        "kubelet_restarted_pods_total{static=true}": 2,
        "kubelet_orphaned_runtime_pods_total": 2,
    }


def test_the_published_phase_of_a_pod_without_a_uid_counts() -> None:
    metrics = Metrics()
    metrics.pods_cleaned_up(cleanup_input(build.pod("web", namespace="", uid=""), phase="Failed"), NO_PLAN)
    assert totals(samples(metrics)) == {"kubelet_desired_pods{static=}": 1}


def test_a_restart_without_a_pod_counts_as_not_static() -> None:
    metrics = Metrics()
    restart = build.update(UpdateType.CREATE, PodRecord(uid="unknown"))
    metrics.pods_cleaned_up(cleanup_input(), replace(NO_PLAN, restarts=(restart,)))
    assert totals(samples(metrics)) == {"kubelet_restarted_pods_total{static=}": 1}


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


def test_series_are_removed_with_their_probe() -> None:
    metrics = Metrics()
    for kind in ProbeKind:
        metrics.probed(WEB, "c", kind, ProbeResult.SUCCESS, 0.1)
    metrics.probed(pod("db"), "c", ProbeKind.LIVENESS, ProbeResult.SUCCESS, 0.1)
    metrics.probe_removed(WEB, "c", ProbeKind.STARTUP)
    metrics.probe_removed(WEB, "unknown", ProbeKind.STARTUP)
    assert not [name for name in probe_samples(metrics) if "Startup" in name]
    for kind in (ProbeKind.LIVENESS, ProbeKind.READINESS):
        metrics.probe_removed(WEB, "c", kind)
    metrics.probe_removed(pod("unknown"), "c", ProbeKind.LIVENESS)
    left = probe_samples(metrics)
    assert left
    assert all("pod=db" in name for name in left)
    metrics.probe_removed(pod("db"), "c", ProbeKind.LIVENESS)
    assert probe_samples(metrics) == []


def probe_lines(metrics: Metrics) -> list[str]:
    """What is shown of probes, without the buckets that hold nothing new."""
    shown = [line for line in metrics.exposition().decode().splitlines() if "prober_" in line]
    counts: dict[str, str] = {}
    kept = []
    for line in shown:
        series, _, value = line.rpartition(" ")
        probe = series.partition(",le=")[0]
        if "_bucket{" not in series or counts.get(probe, "0") != value:
            kept.append(line)
        if "_bucket{" in series:
            counts[probe] = value
    return kept


def test_answers_are_counted_by_result_and_measured_up_to_each_bound() -> None:
    metrics = Metrics()
    for result, seconds in (
        (ProbeResult.SUCCESS, 0.005),
        (ProbeResult.SUCCESS, 0.0051),
        (ProbeResult.FAILURE, 0.25),
        (ProbeResult.UNKNOWN, 10.0),
        (ProbeResult.UNKNOWN, 10.1),
    ):
        metrics.probed(WEB, "c", ProbeKind.READINESS, result, seconds)
    metrics.probed(pod("db"), "d", ProbeKind.STARTUP, ProbeResult.FAILURE, 1.0)
    labels = 'container="c",namespace="ns",pod="web",probe_type="Readiness"'
    assert probe_lines(metrics) == [
        f"# HELP prober_probe_total {of.PROBES.help}",
        "# TYPE prober_probe_total counter",
        f'prober_probe_total{{{labels},pod_uid="uid-web",result="successful"}} 2',
        f'prober_probe_total{{{labels},pod_uid="uid-web",result="failed"}} 1',
        f'prober_probe_total{{{labels},pod_uid="uid-web",result="unknown"}} 2',
        'prober_probe_total{container="d",namespace="ns",pod="db",probe_type="Startup",'
        'pod_uid="uid-db",result="failed"} 1',
        f"# HELP prober_probe_duration_seconds {of.PROBE_TIMES.help}",
        "# TYPE prober_probe_duration_seconds histogram",
        f'prober_probe_duration_seconds_bucket{{{labels},le="0.005"}} 1',
        f'prober_probe_duration_seconds_bucket{{{labels},le="0.01"}} 2',
        f'prober_probe_duration_seconds_bucket{{{labels},le="10"}} 3',
        f'prober_probe_duration_seconds_bucket{{{labels},le="+Inf"}} 4',
        f"prober_probe_duration_seconds_sum{{{labels}}} {0.005 + 0.0051 + 10.0 + 10.1!r}",
        f"prober_probe_duration_seconds_count{{{labels}}} 4",
    ]


def test_a_probe_of_a_pod_without_metadata_has_series() -> None:
    metrics, nameless = Metrics(), Pod(metadata=ObjectMeta(), spec=PodSpec())
    for container in ("c", "d"):
        metrics.probed(nameless, container, ProbeKind.LIVENESS, ProbeResult.FAILURE, 1.0)
    metrics.probe_removed(nameless, "d", ProbeKind.LIVENESS)
    assert probe_samples(metrics) == [
        "prober_probe_total{container=c,namespace=,pod=,pod_uid=,probe_type=Liveness,result=failed}"
    ]
    metrics.probe_removed(nameless, "c", ProbeKind.LIVENESS)
    assert probe_samples(metrics) == []


# The format.


def test_families_of_every_kind_are_written_line_by_line() -> None:
    metrics = Metrics()
    metrics.pods_listed([RUNNING, RUNNING], NOW)
    metrics.runtime_call("start_container", 0.5, failed=False)
    metrics.evicted("memory.available")
    metrics.container_start_failed("container", "ErrImagePull")
    metrics.pod_started(WEB)
    metrics.relisted(0.5, None)
    lines = metrics.exposition().decode().splitlines()

    def family(name: str) -> list[str]:
        return [line for line in lines if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(name)]

    assert family("kubelet_running_containers") == [
        f"# HELP kubelet_running_containers {of.RUNNING_CONTAINERS.help}",
        "# TYPE kubelet_running_containers gauge",
        *(
            f'kubelet_running_containers{{container_state="{state}"}} {2 * (state == "running")}'
            for state in RecordState
        ),
    ]
    assert family("kubelet_runtime_operations_total") == [
        f"# HELP kubelet_runtime_operations_total {of.CALLS.help}",
        "# TYPE kubelet_runtime_operations_total counter",
        'kubelet_runtime_operations_total{operation_type="start_container"} 1',
    ]
    assert family("kubelet_evictions") == [
        f"# HELP kubelet_evictions {of.EVICTIONS.help}",
        "# TYPE kubelet_evictions counter",
        'kubelet_evictions{eviction_signal="memory.available"} 1',
    ]
    assert family("kubelet_started_containers_errors_total{") == [
        'kubelet_started_containers_errors_total{code="ErrImagePull",container_type="container"} 1'
    ]
    assert family("kubelet_containers_per_pod_count") == [
        f"# HELP kubelet_containers_per_pod_count {of.CONTAINERS_PER_POD.help}",
        "# TYPE kubelet_containers_per_pod_count histogram",
        *(f'kubelet_containers_per_pod_count_bucket{{le="{bound}"}} 1' for bound in (1, 2, 4, 8, 16, "+Inf")),
        "kubelet_containers_per_pod_count_count 1",
        "kubelet_containers_per_pod_count_sum 1",
    ]
    assert "kubelet_pleg_relist_duration_seconds_sum 0.5" in lines


def test_every_family_is_written_once_under_its_own_name_and_type() -> None:
    kinds = {CounterFamily: "counter", GaugeFamily: "gauge", HistogramFamily: "histogram"}
    typed = [line for line in Metrics().exposition().decode().splitlines() if line.startswith("# TYPE")]
    assert sorted(typed) == sorted(f"# TYPE {family.name} {kinds[type(family)]}" for family in of.families())


def test_the_text_has_the_kubelets_format() -> None:
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
    metrics.sync_ended(odd, 0.1)
    metrics.probed(WEB, odd, ProbeKind.LIVENESS, ProbeResult.SUCCESS, 0.1)
    families = text_string_to_metric_families(metrics.exposition().decode())
    values = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert odd in values


def test_two_agents_in_one_process_do_not_share_numbers() -> None:
    one, other = Metrics(), Metrics()
    one.event_discarded()
    assert samples(one)["kubelet_pleg_discard_events"] == 1
    assert samples(other)["kubelet_pleg_discard_events"] == 0


def test_metrics_count_the_reports_of_each_module() -> None:
    metrics = Metrics()
    metrics.events_missed(1)
    metrics.sync_ended("kill", 1.0)
    metrics.first_sync_started(1.0)
    metrics.sandbox_starting()
    metrics.image_pulled(1.0, 1)
    metrics.probed(WEB, "c", ProbeKind.LIVENESS, ProbeResult.FAILURE, 1.0)
    metrics.runtime_call("stop_container", 0.1, failed=False)
    metrics.pods_cleaned_up(SIGHT, PLAN)
    metrics.rejected("OutOfpods")
    metrics.preempted("pods")
    metrics.status_synced(1.0)
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


def test_metrics_override_every_method_of_the_observer() -> None:
    reports = {name for name in vars(Observer) if not name.startswith("_")}
    assert reports <= vars(Metrics).keys()
