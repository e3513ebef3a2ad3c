"""Replays of the recorded probe tables: flags, workers, results, requests and ports."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, HTTPGetAction, Pod, PodStatus
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.probing import CommandExited, HttpAnswer, NoHttpAnswer, NotRun, TimedOut
from podkeeper.rules.probe.exec import exec_report
from podkeeper.rules.probe.flags import ProbeView, with_probe_flags
from podkeeper.rules.probe.http import http_report, http_request
from podkeeper.rules.probe.net import resolve_port
from podkeeper.rules.probe.report import ProbeConclusion, ProbeOutcome, Report, Retry, conclude
from podkeeper.rules.probe.worker import (
    AwaitingContainer,
    Live,
    OnHold,
    ProbeStep,
    Probing,
    Stopped,
    TickInput,
    count_outcome,
    probes_of,
    tick,
)
from tests.oracle.compare import Difference, Json, Replay, answers, differences

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _flags(given: Json) -> Json:
    statuses = {
        "containerStatuses": given["container_statuses"],
        "initContainerStatuses": given["init_container_statuses"],
    }
    pod = msgspec.convert({"spec": given["spec"], "status": {"conditions": given["api_conditions"], **statuses}}, Pod)
    view = ProbeView(
        agent_started=_at(given["kubelet_start"]),
        readiness={key: ProbeResult(value) for key, value in given["readiness_results"].items()},
        startup={key: ProbeResult(value) for key, value in given["startup_results"].items()},
        workers=frozenset((target.container.name, target.kind) for target in probes_of(pod)),
    )
    status = with_probe_flags(pod, pod.status, view)
    return {
        found.name: {"ready": found.ready, "started": found.started}
        for found in [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    }


def _concluded(kind: ProbeKind, execute: Callable[[], Report]) -> tuple[ProbeConclusion, int]:
    """Execute a probe until there is a conclusion, as the engine does."""
    executions = 0
    while True:
        executions += 1
        conclusion = conclude(kind, execute(), executions)
        if conclusion is not Retry.NOW:
            return conclusion, executions


class _Worker:
    """One recorded worker: its pod, its clock and its stored results."""

    def __init__(self, given: Json) -> None:
        self._given = given
        self._list = "initContainers" if given["sidecar_init_container"] else "containers"
        self._pod = msgspec.convert(
            {
                "spec": {
                    "restartPolicy": given["restart_policy"],
                    self._list: [
                        {
                            "name": "c0",
                            "restartPolicy": "Always" if given["sidecar_init_container"] else None,
                            f"{given['probe_type']}Probe": {
                                "initialDelaySeconds": given["initial_delay_seconds"],
                                "failureThreshold": given["failure_threshold"],
                                "successThreshold": given["success_threshold"],
                            },
                        }
                    ],
                }
            },
            Pod,
        )
        (self._target,) = probes_of(self._pod)
        self._seconds = 0
        self._status: PodStatus | None = None
        self._state: Live = AwaitingContainer()
        self._container_id: str | None = None
        self._stored: dict[str, ProbeResult] = {}

    def apply(self, step: Json) -> Json:
        """Apply one recorded step. Return the result of a `probe` step."""
        match step["op"]:
            case "status":
                self._see(step)
            case "advance":
                self._seconds += step["seconds"]
            case "delete_pod":
                metadata = msgspec.structs.replace(self._pod.metadata, deletion_timestamp="2000-01-01T00:00:00Z")
                self._pod = msgspec.structs.replace(self._pod, metadata=metadata)
            case "probe":
                return self._probe(step["outcome"])
        return None

    def _see(self, step: Json) -> None:
        container = step["container"]
        statuses = container and [
            {
                "name": "c0",
                "containerID": container["container_id"],
                "started": container["started"],
                "state": container["state"],
            }
        ]
        key = "initContainerStatuses" if self._list == "initContainers" else "containerStatuses"
        self._status = msgspec.convert({"phase": step["phase"], key: statuses}, PodStatus)

    def _probe(self, outcome: str) -> Json:
        known = TickInput(self._pod, self._status, _at(self._given["kubelet_start"]), _at(self._seconds))
        step = tick(self._state, self._target, known)
        self._take(step)
        executions = 0
        if step.execute and isinstance(step.state, Probing):
            report = Report(ProbeOutcome(outcome), error="not executed" if outcome == "error" else None)
            conclusion, executions = _concluded(self._target.kind, lambda: report)
            step = count_outcome(step.state, self._target, conclusion.result)
            self._take(step)
        return {
            "executions": executions,
            "keep_going": not isinstance(step.state, Stopped),
            # In the kubelet, the flag stays after the worker has stopped. Ours is a state, so use the last one before.
            "on_hold": isinstance(self._state, OnHold) and self._state.container_id == self._container_id,
            "result": self._container_id and self._stored.get(self._container_id),
        }

    def _take(self, step: ProbeStep) -> None:
        if step.forget is not None:
            self._stored.pop(step.forget, None)
        if not isinstance(step.state, AwaitingContainer):
            self._container_id = step.state.container_id
        if step.store is not None and self._container_id is not None:
            self._stored[self._container_id] = step.store
        if not isinstance(step.state, Stopped):
            self._state = step.state


def _worker(given: Json, script: Json) -> Iterator[Difference]:
    worker = _Worker(given)
    for index, step in enumerate(script):
        got = worker.apply(step)
        if "expect" in step:
            yield from differences(step["expect"], msgspec.to_builtins(got), f"step {index}")


def _mapping(given: Json) -> Json:
    error = "could not be executed" if given["low_level_error"] else None
    report = Report(ProbeOutcome(given["low_level_result"]), given["low_level_output"], error)
    conclusion, executions = _concluded(ProbeKind(given["probe_type"]), lambda: report)
    return {
        "events": [],  # the recording has no events
        "executions": executions,
        "is_error": conclusion.result is None,
        "result": str(conclusion.result or ProbeResult.FAILURE),  # with an error, the kubelet returns a failure
    }


def _report(report: Report, expected: Json) -> Iterator[Difference]:
    got = {"error": report.error is not None, "output": report.output, "result": str(report.outcome)}
    if "output_length" in expected:
        got = {**got, "output_length": len(report.output)}
        del got["output"]
    yield from differences(expected, got)


def _body(given: Json, key: str) -> bytes:
    text: str = "x" * given[f"{key}_length"] if f"{key}_length" in given else given[key]
    return text.encode()


def _http_result(given: Json, expected: Json) -> Iterator[Difference]:
    if given["transport_error"] is not None:
        report = http_report(NoHttpAnswer(given["transport_error"]))
    else:
        report = http_report(HttpAnswer(given["status"], _body(given, "body")))
    yield from _report(report, expected)


def _exec_result(given: Json, expected: Json) -> Iterator[Difference]:
    output = _body(given, "output")
    match given["command_error"].partition(":"):
        case ("none", _, _):
            report = exec_report(CommandExited(0, output))
        case ("exit", _, code):
            report = exec_report(CommandExited(int(code), output))
        case ("timeout", _, _):
            report = exec_report(TimedOut("command timed out"))
        case _:
            report = exec_report(NotRun("cannot run"))
    if expected.get("output_is_error_text"):
        expected = {**expected, "output": "command timed out"}
        del expected["output_is_error_text"]
    yield from _report(report, expected)


def _http_request(given: Json) -> Json:
    container = msgspec.convert({"name": "c0", "ports": given["ports"]}, Container)
    try:
        request = http_request(
            msgspec.convert(given["http_get"], HTTPGetAction), container, given["pod_ip"], "<version>"
        )
    except BadInput:
        return {"error": True}
    return {
        "error": False,
        "headers": {name: list(values) for name, values in request.headers.items()},
        "host_header": request.host,
        "method": request.method,
        "url": request.url,
    }


def _resolve_port(given: Json) -> Json:
    container = msgspec.convert({"name": "c0", "ports": given["ports"]}, Container)
    try:
        return {"error": None, "port": resolve_port(given["param"], container)}
    except BadInput as error:
        return {"error": error.problems[0].message, "port": None}


TABLES: dict[str, Replay] = {
    "ready_and_started_flags": answers(_flags),
    "probe_worker": _worker,
    "probe_result_mapping": answers(_mapping),
    "http_probe_result": _http_result,
    "exec_probe_result": _exec_result,
    "http_probe_request": answers(_http_request),
    "resolve_port": answers(_resolve_port),
}
