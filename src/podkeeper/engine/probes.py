"""Probe workers: execute each probe of each container and store the results.

    timer -> `tick` (rules.probe.worker) -> execute -> `conclude`, `count_outcome` -> stored result -> `send`

In: pods as they start and end (`add_pod`, `stop_liveness_and_startup`, `remove_pod`, `keep_only`), each container that
this agent creates (`claim`), and `wake` for a container that only waits for its readiness probe. Out: the results
(`view`, `liveness`, `startup`), each changed result through `send`, events through `record_event`. Guarantees:

* An idle probe is a timer, not a task. A task exists only while a probe is executed.
* Each worker has at most one execution in flight. If it misses ticks meanwhile, it ticks once afterwards.
* The number of concurrent executions is limited. A hung execution releases its slot after a lease, so it delays no
  other probe.
* The result of an execution is dropped if its container has been replaced or has exited.

`rules.probe` decides when to probe and what a report means.
Kubelet counterpart: `manager` and `worker` in pkg/kubelet/prober.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from podkeeper.concurrency.slots import Slots
from podkeeper.concurrency.timer_grid import seconds_to_grid
from podkeeper.engine.events import EventFunction
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import PodUID, ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.runtime import bare_container_id
from podkeeper.ports.clock import Clock
from podkeeper.rules.naming import container_path
from podkeeper.rules.probe.flags import ProbeView, predates_agent
from podkeeper.rules.probe.report import ProbeConclusion, Report, Retry, conclude
from podkeeper.rules.probe.worker import (
    DEFAULT_PERIOD_SECONDS,
    AwaitingContainer,
    Live,
    ProbeReason,
    ProbeStep,
    Probing,
    Stopped,
    Target,
    TickInput,
    count_outcome,
    first_tick_delay_seconds,
    probe_period_seconds,
    probes_of,
    stop,
    tick,
)

log = logging.getLogger(__name__)

# The kubelet has one goroutine per probe and no limit.
SLOTS: Final = 100
"""The number of concurrent executions."""
LEASE_SECONDS: Final = 1.0
"""How long an execution keeps its slot. A longer one continues without a slot."""

Execute = Callable[[Pod, Target, str, str], Awaitable[Report]]
"""Executes a probe once, given the pod's IP and the container ID in the form of the API."""
_Key = tuple[str, ProbeKind]


class _ProbedPod:
    """The workers of one pod and their results."""

    __slots__ = ("ended", "pod", "uid", "view", "workers")

    def __init__(self, pod: Pod, uid: PodUID) -> None:
        self.pod = pod
        self.uid = uid
        self.workers: dict[_Key, _ProbeWorker] = {}
        self.ended: dict[_Key, str | None] = {}  # ended workers, with the last container ID of each
        self.view: ProbeView | None = None  # cached until a worker or a result changes

    def stored(self, kind: ProbeKind) -> dict[str, ProbeResult]:
        """Return the results of one kind, by container ID in the form of the API."""
        return {
            worker.container_id: worker.result
            for worker in self.workers.values()
            if worker.target.kind is kind and worker.result is not None
        }


class _ProbeWorker:
    """One probe of one container: its state, its result and its next tick."""

    __slots__ = ("busy", "due", "group", "period_seconds", "result", "state", "target", "ticked", "timer")

    def __init__(self, group: _ProbedPod, target: Target, period_seconds: float, due: float) -> None:
        self.group = group
        self.target = target
        self.period_seconds = period_seconds
        self.due = due
        self.state: Live | Stopped = AwaitingContainer()
        self.result: ProbeResult | None = None  # of the container in `state`
        self.timer: asyncio.TimerHandle | None = None
        self.busy = False  # executing, or waiting for a slot
        self.ticked = False

    @property
    def key(self) -> _Key:
        return self.target.container.name, self.target.kind

    @property
    def container_id(self) -> str:
        """Return the ID of the probed container, or an empty string before the first one."""
        return "" if isinstance(self.state, AwaitingContainer) else self.state.container_id or ""

    def __str__(self) -> str:
        meta = self.group.pod.metadata
        container, kind = self.key
        return f"{kind} probe of container {container} of pod {meta.namespace or 'default'}/{meta.name}"


class ProbeManager:
    """The probe workers of all pods. Probes are executed only while `run` runs."""

    def __init__(
        self,
        *,
        execute: Execute,
        status_of: Callable[[PodUID], PodStatus | None],
        send: Callable[[ProbeUpdate], None],
        record_event: EventFunction,
        clock: Clock,
        observer: Observer | None = None,
        slots: int = SLOTS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._execute_once = execute
        self._status_of = status_of
        self._send = send
        self._record_event = record_event
        self._clock = clock
        self._began = clock.monotonic()
        self._observer = observer or Observer()
        self._slots: Slots[_ProbeWorker] = Slots(slots, lease_seconds=lease_seconds, on_free=self._fill_slots)
        self._queue: deque[_ProbeWorker] = deque()  # due, and waiting for a slot
        self._pods: dict[PodUID, _ProbedPod] = {}
        self._own: dict[PodUID, dict[str, str]] = {}  # the last container that this agent created, by name
        self._unprobed = ProbeView()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Execute probes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self._fill_slots()
                await asyncio.get_running_loop().create_future()  # never set, so this waits until cancelled
            finally:
                self._tasks = None
                for group in self._pods.values():
                    for worker in group.workers.values():
                        _cancel_timer(worker)

    # Results.

    def view(self, uid: PodUID) -> ProbeView:
        """Return the results of a pod. The same object is returned until something changes."""
        group = self._pods.get(uid)
        if group is None:
            return self._unprobed
        if group.view is None:
            group.view = ProbeView(
                own=self._own_of(uid),
                readiness=group.stored(ProbeKind.READINESS),
                startup=group.stored(ProbeKind.STARTUP),
                workers=frozenset(group.workers),
            )
        return group.view

    def liveness(self, uid: PodUID) -> Mapping[str, ProbeResult]:
        """Return the liveness results of a pod by the container IDs of the runtime."""
        return self._by_bare_id(uid, ProbeKind.LIVENESS)

    def startup(self, uid: PodUID) -> Mapping[str, ProbeResult]:
        """Return the startup results of a pod by the container IDs of the runtime."""
        return self._by_bare_id(uid, ProbeKind.STARTUP)

    def _by_bare_id(self, uid: PodUID, kind: ProbeKind) -> Mapping[str, ProbeResult]:
        group = self._pods.get(uid)
        stored = {} if group is None else group.stored(kind)
        return {bare_container_id(container_id): result for container_id, result in stored.items()}

    def __len__(self) -> int:
        return sum(len(group.workers) for group in self._pods.values())

    # Pods and containers.

    def claim(self, uid: PodUID, container: str, container_id: str) -> None:
        """Record that this agent created a container, so results published for earlier containers do not apply."""
        # Known by ID and not by time: after a clock jump, a container of the last agent seems to have started after
        # this agent.
        self._own.setdefault(uid, {})[container] = container_id
        group = self._pods.get(uid)
        if group is not None:
            group.view = None

    def add_pod(self, pod: Pod) -> None:
        """Start a worker for each probe of a pod that has none. Existing workers continue."""
        uid = PodUID(pod.metadata.uid or "")
        group = self._pods.get(uid)
        if group is not None and group.pod is pod and not group.ended:
            return
        for target in probes_of(pod):
            if group is None:
                group = self._pods[uid] = _ProbedPod(pod, uid)
            group.pod = pod
            key = (target.container.name, target.kind)
            if key in group.workers or (key in group.ended and not self._has_new_container(group, key)):
                continue
            group.ended.pop(key, None)
            self._begin(group, target)

    def wake(self, uid: PodUID, containers: Iterable[str]) -> None:
        """Tick the readiness probes of these containers now, and then once per period."""
        group = self._pods.get(uid)
        if group is None:
            return
        for name in containers:
            worker = group.workers.get((name, ProbeKind.READINESS))
            if worker is None or worker.busy:  # the execution in flight already produces the result
                continue
            # After a restart, the agent finds all pods at once. Their first ticks stay spread over the period.
            if worker.ticked or not self._predates_agent(group, name):
                worker.due = self._clock.monotonic()
                self._schedule(worker)

    def stop_liveness_and_startup(self, pod: Pod) -> None:
        """Stop probes that could restart containers of a terminating pod. Sidecars keep theirs until they stop."""
        group = self._pods.get(PodUID(pod.metadata.uid or ""))
        if group is None:
            return
        # Not init containers: a sidecar must be restarted until the regular containers have stopped (KEP-753).
        for container in pod.spec.containers:
            for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
                if (worker := group.workers.get((container.name, kind))) is not None:
                    self._end(worker)

    def remove_pod(self, uid: PodUID) -> None:
        """Stop all workers of a pod and delete their results."""
        self._own.pop(uid, None)
        group = self._pods.pop(uid, None)
        if group is not None:
            for worker in tuple(group.workers.values()):
                self._end(worker)

    def keep_only(self, uids: Collection[PodUID]) -> None:
        """Stop the workers of all other pods."""
        for uid in [uid for uid in {**self._pods, **self._own} if uid not in uids]:
            self.remove_pod(uid)

    # Workers.

    def _begin(self, group: _ProbedPod, target: Target) -> None:
        now = self._clock.monotonic()
        period_seconds = _period_seconds(group.pod, target)
        # As in the kubelet, the probes of a restarted agent begin at random times, so that they do not all run at once.
        delay_seconds = first_tick_delay_seconds(period_seconds, now - self._began, self._clock.fraction())
        worker = _ProbeWorker(group, target, period_seconds, now + delay_seconds)
        group.workers[worker.key] = worker
        group.view = None
        self._schedule(worker)

    def _end(self, worker: _ProbeWorker) -> None:
        """Stop a worker. The result of an execution in flight is dropped."""
        if not isinstance(worker.state, Stopped):
            self._apply(worker, stop(worker.state))

    def _schedule(self, worker: _ProbeWorker) -> None:
        _cancel_timer(worker)
        worker.timer = asyncio.get_running_loop().call_at(worker.due, self._on_timer, worker)

    def _on_timer(self, worker: _ProbeWorker) -> None:
        worker.timer = None
        # Missed ticks are skipped: the next tick is the first one in the future.
        behind_seconds = max(self._clock.monotonic() - worker.due, 0.0)
        # Relative to the last due time and not to now, so that delays do not add up.
        worker.due += worker.period_seconds * (behind_seconds // worker.period_seconds + 1)
        # A wake-up costs more than the tick itself.
        worker.due += seconds_to_grid(worker.due, worker.period_seconds)
        self._tick(worker)

    def _tick(self, worker: _ProbeWorker) -> None:
        """Tick a worker. This is the top of a timer callback, so it logs every exception."""
        if isinstance(worker.state, Stopped):
            return
        execute = False
        try:
            step = tick(worker.state, worker.target, self._known(worker))
            execute = step.execute
            self._apply(worker, step)
        except Exception:
            log.exception("unexpected error in a tick of the %s, will retry", worker)
        worker.ticked = True
        if isinstance(worker.state, Probing) and execute:
            self._execute_soon(worker, worker.state)
        elif not isinstance(worker.state, Stopped):
            self._schedule(worker)

    def _apply(self, worker: _ProbeWorker, step: ProbeStep) -> None:
        group = worker.group
        worker.state = step.state
        if step.forget is not None:
            worker.result = None
            group.view = None
        changed = None
        if step.store is not None and step.store is not worker.result:
            changed = step.store if self._must_send(worker, step) else None
            worker.result = step.store
            group.view = None
        if isinstance(step.state, Stopped):
            _cancel_timer(worker)
            del group.workers[worker.key]
            group.ended[worker.key] = step.state.container_id
            group.view = None
            self._observer.probe_removed(group.pod, *worker.key)
        if changed is not None:
            self._send(ProbeUpdate(worker.target.kind, group.uid, worker.container_id, changed))

    def _must_send(self, worker: _ProbeWorker, step: ProbeStep) -> bool:
        """Return whether a changed result must be sent.

        The initial result of a container is assumed by all readers, unless the published status contradicts it. Sending
        it would cost each new pod a sync without effect.
        """
        if worker.result is not None or step.reason is ProbeReason.DECIDED:
            return True
        found = _container_status(self._status_of(worker.group.uid), worker.target.container.name)
        match worker.target.kind:
            case ProbeKind.LIVENESS:
                return step.store is ProbeResult.FAILURE
            case ProbeKind.READINESS:
                return found is None or found.ready
            case ProbeKind.STARTUP:
                return found is None or bool(found.started)

    def _known(self, worker: _ProbeWorker) -> TickInput:
        group = worker.group
        now, monotonic = self._clock.now(), self._clock.monotonic()
        return TickInput(group.pod, self._status_of(group.uid), None, now, monotonic, self._own_of(group.uid))

    def _own_of(self, uid: PodUID) -> frozenset[str]:
        return frozenset(self._own.get(uid, {}).values())

    def _has_new_container(self, group: _ProbedPod, key: _Key) -> bool:
        """Return whether there is a newer container than the last one of the ended worker."""
        found = _container_status(self._status_of(group.uid), key[0])
        return found is not None and found.container_id != group.ended[key]

    def _predates_agent(self, group: _ProbedPod, container: str) -> bool:
        found = _container_status(self._status_of(group.uid), container)
        return found is not None and predates_agent(found, self._own_of(group.uid))

    # Execution.

    def _execute_soon(self, worker: _ProbeWorker, state: Probing) -> None:
        """Execute a probe now if a slot is free, else queue it."""
        worker.busy = True
        if self._tasks is None or not self._slots.take(worker):
            self._queue.append(worker)
            return
        self._tasks.create_task(self._execute(worker, state))

    def _fill_slots(self) -> None:
        """Give free slots to queued workers. Each ticks again first, because its container may have changed."""
        while self._queue and self._tasks is not None and self._slots.has_free():
            worker = self._queue.popleft()
            worker.busy = False
            self._tick(worker)

    async def _execute(self, worker: _ProbeWorker, state: Probing) -> None:
        """Execute a probe and apply its result. This is the top of a task, so it logs every exception."""
        again = False
        try:
            again = self._conclude(worker, state, await self._execute_probe(worker, state))
        except Exception:
            log.exception("unexpected error in an execution of the %s, will retry", worker)
        finally:
            worker.busy = False
            if self._tasks is not None:
                # Before the next tick, which may need the slot again.
                self._slots.give_back(worker)
                if again:
                    self._tick(worker)
                elif not isinstance(worker.state, Stopped):
                    self._schedule(worker)

    async def _execute_probe(self, worker: _ProbeWorker, state: Probing) -> ProbeResult | None:
        """Execute a probe up to three times, until it has a result. Return None if it has none."""
        group, target = worker.group, worker.target
        began = self._clock.monotonic()
        executions = 0
        conclusion: ProbeConclusion | Retry = Retry.NOW
        while not isinstance(conclusion, ProbeConclusion):
            status = self._status_of(group.uid) or PodStatus()
            report = await self._execute_once(group.pod, target, status.pod_ip or "", state.container_id)
            executions += 1
            conclusion = conclude(target.kind, report, executions)
        if worker.state is not state:  # the worker was stopped meanwhile
            return None
        if conclusion.event is not None:
            path = container_path(group.pod, target.container.name)
            self._record_event(replace(conclusion.event, uid=group.uid, container_path=path), group.pod)
        if conclusion.result is not None:
            seconds = self._clock.monotonic() - began
            self._observer.probed(group.pod, target.container.name, target.kind, conclusion.result, seconds)
        return conclusion.result

    def _conclude(self, worker: _ProbeWorker, state: Probing, result: ProbeResult | None) -> bool:
        """Apply a result if its container still exists. Return True if another container must be probed now."""
        if worker.state is not state:
            return False
        # Tick again with the current status: the container may have exited or been replaced during the execution.
        step = tick(state, worker.target, self._known(worker))
        if step.execute and step.state == state:
            self._apply(worker, count_outcome(state, worker.target, result))
            return False
        self._apply(worker, step)
        return step.execute


def _period_seconds(pod: Pod, target: Target) -> float:
    """Return the period of a probe. An invalid annotation is ignored."""
    try:
        return probe_period_seconds(pod, target)
    except BadInput as error:
        log.warning("%s; using periodSeconds of the probe", error)
        return float(target.probe.period_seconds or DEFAULT_PERIOD_SECONDS)


def _container_status(status: PodStatus | None, name: str) -> ContainerStatus | None:
    """Return the status of a container that has an ID."""
    if status is None:
        return None
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return next((found for found in statuses if found.name == name and found.container_id), None)


def _cancel_timer(worker: _ProbeWorker) -> None:
    if worker.timer is not None:
        worker.timer.cancel()
        worker.timer = None
