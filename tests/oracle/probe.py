"""Replays of the recorded probe tables: flags, workers, results, requests and ports."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, HTTPGetAction, Pod, PodStatus
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.probing import Exited, HttpAnswer, NoAnswer, NotRun, TimedOut
from podkeeper.rules.probe.exec import judge_exec
from podkeeper.rules.probe.flags import ProbeView, with_probe_flags
from podkeeper.rules.probe.http import http_request, judge_http
from podkeeper.rules.probe.net import resolve_port
from podkeeper.rules.probe.report import Again, Outcome, Report, Verdict, judge
from podkeeper.rules.probe.worker import Ended, Known, Live, OnHold, Probing, Step, Waiting, after, probes_of, tick
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


def _judged(kind: ProbeKind, execute: Callable[[], Report]) -> tuple[Verdict, int]:
    """Execute a probe until it is judged, as the engine does."""
    executions = 0
    while True:
        executions += 1
        verdict = judge(kind, execute(), executions)
        if verdict is not Again.RETRY:
            return verdict, executions


class _Worker:
    """One recorded worker: its pod, its clock, and the results it has stored."""

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
        self._state: Live = Waiting()
        self._container_id: str | None = None
        self._stored: dict[str, ProbeResult] = {}

    def obey(self, step: Json) -> Json:
        """Take one recorded step; answer what a `probe` step expects."""
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
        known = Known(self._pod, self._status, _at(self._given["kubelet_start"]), _at(self._seconds))
        step = tick(self._state, self._target, known)
        self._take(step)
        executions = 0
        if step.execute and isinstance(step.state, Probing):
            report = Report(Outcome(outcome), error="not executed" if outcome == "error" else None)
            verdict, executions = _judged(self._target.kind, lambda: report)
            step = after(step.state, self._target, verdict.result)
            self._take(step)
        return {
            "executions": executions,
            "keep_going": not isinstance(step.state, Ended),
            # The reference's flag outlives its worker; ours is a state, so ask the last one before the end.
            "on_hold": isinstance(self._state, OnHold) and self._state.container_id == self._container_id,
            "result": self._container_id and self._stored.get(self._container_id),
        }

    def _take(self, step: Step) -> None:
        if step.forget is not None:
            self._stored.pop(step.forget, None)
        if not isinstance(step.state, Waiting):
            self._container_id = step.state.container_id
        if step.store is not None and self._container_id is not None:
            self._stored[self._container_id] = step.store
        if not isinstance(step.state, Ended):
            self._state = step.state


def _worker(given: Json, script: Json) -> Iterator[Difference]:
    worker = _Worker(given)
    for index, step in enumerate(script):
        got = worker.obey(step)
        if "expect" in step:
            yield from differences(step["expect"], msgspec.to_builtins(got), f"step {index}")


def _mapping(given: Json) -> Json:
    error = "could not be executed" if given["low_level_error"] else None
    report = Report(Outcome(given["low_level_result"]), given["low_level_output"], error)
    verdict, executions = _judged(ProbeKind(given["probe_type"]), lambda: report)
    return {
        "events": [],  # the recorder that took these rows swallowed every event
        "executions": executions,
        "is_error": verdict.result is None,
        "result": str(verdict.result or ProbeResult.FAILURE),  # beside an error the reference names a failure
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
        report = judge_http(NoAnswer(given["transport_error"]))
    else:
        report = judge_http(HttpAnswer(given["status"], _body(given, "body")))
    yield from _report(report, expected)


def _exec_result(given: Json, expected: Json) -> Iterator[Difference]:
    output = _body(given, "output")
    match given["command_error"].partition(":"):
        case ("none", _, _):
            report = judge_exec(Exited(0, output))
        case ("exit", _, code):
            report = judge_exec(Exited(int(code), output))
        case ("timeout", _, _):
            report = judge_exec(TimedOut("command timed out"))
        case _:
            report = judge_exec(NotRun("cannot run"))
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
