"""The scribe: writes what happens into the trace, in words a person can follow."""

from podkeeper.model.k8s.core import ContainerStatus, Event, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.mirror import full_name
from podkeeper.testing.sim.records import (
    Answered,
    Asked,
    Bus,
    Called,
    ContainerChanged,
    LifeBegan,
    LifeEnded,
    Played,
    PodChanged,
    SandboxChanged,
    Told,
    TroubleBegan,
    TroubleEnded,
)
from podkeeper.testing.sim.trace import Trace

_HAPPENED = {
    RuntimeEventType.CREATED: "created",
    RuntimeEventType.STARTED: "started",
    RuntimeEventType.STOPPED: "ended",
    RuntimeEventType.DELETED: "removed",
}


class Scribe:
    """Writes the trace."""

    def __init__(self, bus: Bus, trace: Trace) -> None:
        self._trace = trace
        bus.subscribe(Called, self._called)
        bus.subscribe(Answered, self._answered)
        bus.subscribe(Asked, self._asked)
        bus.subscribe(SandboxChanged, self._sandbox)
        bus.subscribe(ContainerChanged, self._container)
        bus.subscribe(PodChanged, self._pod)
        bus.subscribe(Told, self._told)
        bus.subscribe(LifeBegan, lambda it: trace.note(it.at, "", f"==== agent {it.life} starts"))
        bus.subscribe(LifeEnded, lambda it: trace.note(it.at, "", f"==== agent {it.life} is gone: {it.how}"))
        bus.subscribe(Played, lambda it: trace.note(it.at, "", f"**** act {it.number}: {it.text}"))
        bus.subscribe(TroubleBegan, lambda it: trace.note(it.at, it.uid or "", f"!!!! trouble: {it.kind}"))
        bus.subscribe(TroubleEnded, lambda it: trace.note(it.at, it.uid or "", f"!!!! over: {it.kind}"))

    def _called(self, call: Called) -> None:
        if _is_small_talk(call):
            self._trace.digest(call.at, "", f"{call.operation} {call.subject}")
            return
        self._trace.note(call.at, call.uid, f"agent {call.life} -> {_spelled(call)}")

    def _answered(self, answer: Answered) -> None:
        call = answer.call
        took = answer.at - call.at
        if _is_small_talk(call) or (not answer.error and took < 0.001):
            self._trace.digest(answer.at, call.uid, f"{call.operation} {answer.error}")
            return
        how = answer.error or "ok"
        self._trace.note(answer.at, call.uid, f"agent {call.life} <- {_spelled(call)}: {how} after {took:.3f} s")

    def _asked(self, asked: Asked) -> None:
        self._trace.digest(asked.at, asked.uid, f"{asked.operation} {asked.subject} {asked.error}")

    def _sandbox(self, it: SandboxChanged) -> None:
        self._trace.note(it.at, it.uid, f"sandbox {it.record.id} (try {it.record.attempt}) {_HAPPENED[it.happened]}")

    def _container(self, it: ContainerChanged) -> None:
        record = it.record
        text = f"container {record.name} {record.id} (try {record.restart_count}) {_HAPPENED[it.happened]}"
        if it.happened is RuntimeEventType.STOPPED:
            text += f" with exit code {record.exit_code}"
        self._trace.note(it.at, it.uid, text)

    def _pod(self, it: PodChanged) -> None:
        who = f"agent {it.by}" if it.by else "somebody"
        pod = it.new or it.old
        assert pod is not None
        if it.new is None:
            what = "is gone"
        elif it.old is None:
            what = f"is new: {_shown(it.new)}"
        else:
            what = f"is now {_shown(it.new)}"
        uid = PodUID(pod.metadata.uid or "")
        self._trace.note(it.at, uid, f"API: pod {full_name(pod)} {what} (by {who})")

    def _told(self, told: Told) -> None:
        update = told.update
        if len(update.pods) != 1:
            self._trace.note(
                told.at, "", f"agent {told.life} is told {update.op} of {len(update.pods)} ({update.source})"
            )
        for pod in update.pods:
            ending = " ending" if pod.metadata.deletion_timestamp else ""
            text = f"agent {told.life} is told {update.op} {full_name(pod)}{ending} ({update.source})"
            self._trace.note(told.at, pod.metadata.uid or "", text)


def _is_small_talk(call: Called) -> bool:
    """Whether a call tells a reader nothing: the journal's syncs, and events, which repeat what the trace says."""
    return call.room == "journal" or (call.room == "api" and (Event in call.given or isinstance(call.given[0], Event)))


def _spelled(call: Called) -> str:
    more = ""
    if call.operation == "stop_container":
        more = f" within {call.given[1]} s"
    return f"{call.room}.{call.operation} {call.subject}{more}"


def _shown(pod: Pod) -> str:
    status = pod.status
    ready = next((each.status for each in status.conditions or () if each.type == "Ready"), "-")
    parts = [status.phase or "-", f"ready {ready}"]
    if pod.metadata.deletion_timestamp:
        parts.append(f"ending within {pod.metadata.deletion_grace_period_seconds} s")
    if status.reason:
        parts.append(status.reason)
    parts += map(_container_shown, (*(status.init_container_statuses or ()), *(status.container_statuses or ())))
    return ", ".join(parts)


def _container_shown(status: ContainerStatus) -> str:
    state = status.state
    if state.running is not None:
        text = "running"
    elif state.terminated is not None:
        text = f"exited {state.terminated.exit_code}"
    else:
        text = (state.waiting.reason if state.waiting is not None else None) or "waiting"
    return f"{status.name} {text} r{status.restart_count or 0}{' ready' if status.ready else ''}"
