"""The columns of `kubectl get pods`. `reasons` has the text of the column WHY.

Input: pods with their status. Output: the cells of a table. STATUS, READY and RESTARTS have the same values as in
kubectl. Counterparts: `printPod` in pkg/printers/internalversion and `HumanDuration` in
k8s.io/apimachinery/pkg/util/duration.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.table import COMPLETED, Table, TableColumnDefinition, TableRow, TableRowCondition
from podkeeper.model.times import instant
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.static.pod import DEFAULT_NAMESPACE

STOPPED: Final = "Stopped"
"""The status reason of a pod stopped by `podkeeper stop`."""

_NONE: Final = "<none>"
_COLUMNS: Final = (
    ("Pod", 0),
    ("Ready", 0),
    ("Status", 0),
    ("Restarts", 0),
    ("Age", 0),
    ("IP", 1),
    ("Node", 1),
    ("Nominated Node", 1),
    ("Readiness Gates", 1),
    ("Why", 0),
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The values of the columns STATUS, READY and RESTARTS."""

    status: str
    ready: int
    total: int
    restarts: int
    restarted_at: datetime | None = None  # when the previous instance of a container terminated

    def ready_of_total(self) -> str:
        return f"{self.ready}/{self.total}"

    def restarts_text(self, now: datetime) -> str:
        if not self.restarts or self.restarted_at is None:
            return str(self.restarts)
        return f"{self.restarts} ({human_duration(now - self.restarted_at)} ago)"


def summary_of(pod: Pod) -> Summary:
    status = pod.status
    sidecars = frozenset(each.name for each in pod.spec.init_containers or () if is_sidecar(each))
    total = len(pod.spec.containers) + len(sidecars)
    reason = status.reason or status.phase or "Pending"
    gated = any(each.type == "PodScheduled" and each.reason == "SchedulingGated" for each in status.conditions or ())
    init = _init_summary(pod, sidecars)
    if gated:
        reason = "SchedulingGated"
    if init.reason and not _is_true(status, "Initialized"):
        summary = Summary(init.reason, init.ready, total, init.restarts, init.restarted_at)
    else:
        own = [each for each in status.init_container_statuses or () if each.name in sidecars]
        reason, ready = _main_reason(status, init.reason or reason)
        both = (*own, *(status.container_statuses or ()))
        summary = Summary(reason, init.ready + ready, total, _restarts(both), _last_end(both))
    if pod.metadata.deletion_timestamp and status.phase not in ("Succeeded", "Failed"):
        text = "Unknown" if status.reason == "NodeLost" else "Terminating"
        return Summary(text, summary.ready, total, summary.restarts, summary.restarted_at)
    return summary


@dataclass(frozen=True, slots=True)
class _Init:
    """The summary of the init containers. The reason is empty if all of them have completed."""

    reason: str
    ready: int
    restarts: int
    restarted_at: datetime | None


def _init_summary(pod: Pod, sidecars: frozenset[str]) -> _Init:
    ready, seen = 0, []
    for index, each in enumerate(pod.status.init_container_statuses or ()):
        seen.append(each)
        ended, waiting = each.state.terminated, each.state.waiting
        if ended is not None and ended.exit_code == 0:
            continue
        if each.name in sidecars and each.started:
            ready += each.ready
            continue
        if ended is not None:
            reason = f"Init:{_termination_word(ended.reason, ended.signal, ended.exit_code)}"
        elif waiting is not None and waiting.reason and waiting.reason != "PodInitializing":
            reason = f"Init:{waiting.reason}"
        else:
            reason = f"Init:{index}/{len(pod.spec.init_containers or ())}"
        return _Init(reason, ready, _restarts(seen), _last_end(seen))
    return _Init("", ready, _restarts(seen), _last_end(seen))


def _main_reason(status: PodStatus, reason: str) -> tuple[str, int]:
    """Return the STATUS of the app containers and the number of ready ones."""
    ready, error, has_running = 0, "", False
    for each in reversed(status.container_statuses or ()):
        waiting, ended = each.state.waiting, each.state.terminated
        if waiting is not None and waiting.reason:
            reason = waiting.reason
        elif ended is not None:
            reason = _termination_word(ended.reason, ended.signal, ended.exit_code)
            error = reason if ended.exit_code != 0 else error
        elif each.ready and each.state.running is not None:
            has_running, ready = True, ready + 1
    if reason == "Completed":
        if has_running:
            reason = "Running" if _is_true(status, "Ready") else error or "NotReady"
        else:
            reason = error or reason
    return reason, ready


def _termination_word(reason: str | None, signal: int | None, exit_code: int) -> str:
    if reason:
        return reason
    return f"Signal:{signal}" if signal else f"ExitCode:{exit_code}"


def _restarts(statuses: Iterable[ContainerStatus]) -> int:
    return sum(each.restart_count for each in statuses)


def _last_end(statuses: Iterable[ContainerStatus]) -> datetime | None:
    ends = (instant(each.last_state.terminated.finished_at) for each in statuses if each.last_state.terminated)
    return max((end for end in ends if end is not None), default=None)


def _is_true(status: PodStatus, condition: str) -> bool:
    return any(each.type == condition and each.status == "True" for each in status.conditions or ())


def is_ready(status: PodStatus) -> bool:
    return _is_true(status, "Ready")


def human_duration(length: timedelta) -> str:
    """Format a duration as kubectl does: 90s, 5m3s, 3h12m, 5d4h, 2y14d."""
    seconds = int(length.total_seconds())
    if seconds < 120:
        return "<invalid>" if seconds < -1 else f"{max(seconds, 0)}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 10:
        return f"{minutes}m{_rest(seconds % 60, 's')}"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{_rest(minutes % 60, 'm')}"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{_rest(hours % 24, 'h')}"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y" + (_rest(days % 365, "d") if days < 2920 else "")


def _rest(number: int, unit: str) -> str:
    return f"{number}{unit}" if number else ""


def display_name(pod: Pod) -> str:
    """Return a pod's name, with its namespace if that is not `default`."""
    meta = pod.metadata
    return f"{meta.name}" if meta.namespace in (None, "", DEFAULT_NAMESPACE) else f"{meta.namespace}/{meta.name}"


def created_at(pod: Pod) -> datetime | None:
    return instant(pod.metadata.creation_timestamp)


# ---- the table ----


def pods_table(pods: Iterable[tuple[Pod, str]], now: datetime) -> Table:
    """Return pods and their reasons as a Table of the Kubernetes API. Columns of priority 1 are for `-o wide`."""
    return Table(
        api_version="meta.k8s.io/v1",
        kind="Table",
        column_definitions=tuple(
            TableColumnDefinition(name=name, type="string", priority=priority) for name, priority in _COLUMNS
        ),
        rows=tuple(_row(pod, reason, now) for pod, reason in pods),
    )


def _row(pod: Pod, reason: str, now: datetime) -> TableRow:
    summary, born, status = summary_of(pod), created_at(pod), pod.status
    over = (TableRowCondition(type=COMPLETED, status="True", reason=status.phase),)
    return TableRow(
        cells=(
            display_name(pod),
            summary.ready_of_total(),
            summary.status,
            summary.restarts_text(now),
            "<unknown>" if born is None else human_duration(now - born),
            next((each.ip for each in status.pod_ips or ()), None) or _NONE,
            pod.spec.node_name or _NONE,
            status.nominated_node_name or _NONE,
            _gates(pod),
            reason,
        ),
        conditions=over if status.phase in ("Succeeded", "Failed") else None,
    )


def _gates(pod: Pod) -> str:
    gates = pod.spec.readiness_gates or ()
    met = sum(_is_true(pod.status, gate.condition_type) for gate in gates)
    return f"{met}/{len(gates)}" if gates else _NONE
