"""Write records into the trace, as readable lines."""

from podkeeper.model.k8s.core import ContainerStatus, Event, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.static.mirror import full_name
from podkeeper.testing.sim.records import (
    ActionStarted,
    AgentStarted,
    AgentStopped,
    Bus,
    CallEnded,
    CallStarted,
    ContainerChanged,
    FaultBegan,
    FaultEnded,
    PodChanged,
    ReadEnded,
    SandboxChanged,
    UpdateReceived,
)
from podkeeper.testing.sim.trace import Trace

_EVENT_TEXTS = {
    RuntimeEventType.CREATED: "created",
    RuntimeEventType.STARTED: "started",
    RuntimeEventType.STOPPED: "ended",
    RuntimeEventType.DELETED: "removed",
}


class TraceWriter:
    """Subscribes to all records and writes the trace."""

    def __init__(self, bus: Bus, trace: Trace) -> None:
        self._trace = trace
        bus.subscribe(CallStarted, self._on_call_started)
        bus.subscribe(CallEnded, self._on_call_ended)
        bus.subscribe(ReadEnded, self._on_read_ended)
        bus.subscribe(SandboxChanged, self._on_sandbox_changed)
        bus.subscribe(ContainerChanged, self._on_container_changed)
        bus.subscribe(PodChanged, self._on_pod_changed)
        bus.subscribe(UpdateReceived, self._on_update_received)
        bus.subscribe(AgentStarted, lambda it: trace.add(it.at, "", f"==== agent {it.agent} starts"))
        bus.subscribe(AgentStopped, lambda it: trace.add(it.at, "", f"==== agent {it.agent} ends: {it.how}"))
        bus.subscribe(ActionStarted, lambda it: trace.add(it.at, "", f"**** action {it.number}: {it.text}"))
        bus.subscribe(FaultBegan, lambda it: trace.add(it.at, it.uid or "", f"!!!! fault begins: {it.kind}"))
        bus.subscribe(FaultEnded, lambda it: trace.add(it.at, it.uid or "", f"!!!! fault ends: {it.kind}"))

    def _on_call_started(self, call: CallStarted) -> None:
        if _is_noise(call):
            self._trace.hash_only(call.at, "", f"{call.operation} {call.subject}")
            return
        self._trace.add(call.at, call.uid, f"agent {call.agent} -> {_call_text(call)}")

    def _on_call_ended(self, ended: CallEnded) -> None:
        call = ended.call
        took = ended.at - call.at
        if _is_noise(call) or (not ended.error and took < 0.001):
            self._trace.hash_only(ended.at, call.uid, f"{call.operation} {ended.error}")
            return
        how = ended.error or "ok"
        self._trace.add(ended.at, call.uid, f"agent {call.agent} <- {_call_text(call)}: {how} after {took:.3f} s")

    def _on_read_ended(self, read: ReadEnded) -> None:
        self._trace.hash_only(read.at, read.uid, f"{read.operation} {read.subject} {read.error}")

    def _on_sandbox_changed(self, it: SandboxChanged) -> None:
        self._trace.add(
            it.at, it.uid, f"sandbox {it.record.id} (attempt {it.record.attempt}) {_EVENT_TEXTS[it.happened]}"
        )

    def _on_container_changed(self, it: ContainerChanged) -> None:
        record = it.record
        text = f"container {record.name} {record.id} (attempt {record.restart_count}) {_EVENT_TEXTS[it.happened]}"
        if it.happened is RuntimeEventType.STOPPED:
            text += f" with exit code {record.exit_code}"
        self._trace.add(it.at, it.uid, text)

    def _on_pod_changed(self, it: PodChanged) -> None:
        author = f"agent {it.by}" if it.by else "another client"
        pod = it.new or it.old
        assert pod is not None
        if it.new is None:
            what = "is removed"
        elif it.old is None:
            what = f"is new: {_pod_text(it.new)}"
        else:
            what = f"is now {_pod_text(it.new)}"
        uid = PodUID(pod.metadata.uid or "")
        self._trace.add(it.at, uid, f"API: pod {full_name(pod)} {what} (by {author})")

    def _on_update_received(self, received: UpdateReceived) -> None:
        update = received.update
        if len(update.pods) != 1:
            self._trace.add(
                received.at, "", f"agent {received.agent} receives {update.op} of {len(update.pods)} ({update.source})"
            )
        for pod in update.pods:
            ending = " terminating" if pod.metadata.deletion_timestamp else ""
            text = f"agent {received.agent} receives {update.op} {full_name(pod)}{ending} ({update.source})"
            self._trace.add(received.at, pod.metadata.uid or "", text)


def _is_noise(call: CallStarted) -> bool:
    """Return whether a call gets no line: syncs of the journal, and Events, which repeat other lines of the trace."""
    return call.port == "journal" or (call.port == "api" and (Event in call.args or isinstance(call.args[0], Event)))


def _call_text(call: CallStarted) -> str:
    more = ""
    if call.operation == "stop_container":
        more = f" within {call.args[1]} s"
    return f"{call.port}.{call.operation} {call.subject}{more}"


def _pod_text(pod: Pod) -> str:
    status = pod.status
    ready = next((each.status for each in status.conditions or () if each.type == "Ready"), "-")
    parts = [status.phase or "-", f"ready {ready}"]
    if pod.metadata.deletion_timestamp:
        parts.append(f"terminating within {pod.metadata.deletion_grace_period_seconds} s")
    if status.reason:
        parts.append(status.reason)
    parts += map(_container_text, (*(status.init_container_statuses or ()), *(status.container_statuses or ())))
    return ", ".join(parts)


def _container_text(status: ContainerStatus) -> str:
    state = status.state
    if state.running is not None:
        text = "running"
    elif state.terminated is not None:
        text = f"exited {state.terminated.exit_code}"
    else:
        text = (state.waiting.reason if state.waiting is not None else None) or "waiting"
    return f"{status.name} {text} r{status.restart_count or 0}{' ready' if status.ready else ''}"
