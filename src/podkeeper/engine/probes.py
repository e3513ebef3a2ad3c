"""The probe workers: one for each probe of each container, and what they have found out.

    timer -> `tick` (rules.probe.worker) -> execute -> `judge`, `after` -> a stored result -> `tell`

In: pods as they start and end (`add_pod`, `stop_liveness_and_startup`, `remove_pod`, `keep_only`), each container that
this agent makes (`claim`), and `wake` when one only waits for its readiness probe. Out: the results (`view`,
`liveness`, `startup`), each change of one through `tell`, events through `record`. Promises:

* an idle probe is one timer, not a task; a task lives only while a probe is being executed;
* each worker has at most one execution under way, and a tick it misses meanwhile is made up for once;
* so many executions run at a time, but one that hangs gives its place back after a while: it delays no other;
* what an execution says about a container that is no more, or does not run any more, is dropped.

When to probe, and what a report means, is decided in `rules.probe`. The Go ancestors are `manager` and `worker`
in pkg/kubelet/prober.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from podkeeper.engine.observer import Observer
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import PodEvent, PodUID, ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.runtime import PodRecord, bare_container_id
from podkeeper.ports.clock import Clock
from podkeeper.rules.probe.flags import ProbeView, predates_agent
from podkeeper.rules.probe.report import Again, Report, Verdict, judge
from podkeeper.rules.probe.worker import (
    DEFAULT_PERIOD_SECONDS,
    Ended,
    Known,
    Live,
    Probing,
    Reason,
    Step,
    Target,
    Waiting,
    after,
    first_tick_delay_seconds,
    probe_period_seconds,
    probes_of,
    stop,
    tick,
)

log = logging.getLogger(__name__)

SLOTS: Final = 100
"""How many executions may run at a time."""
LEASE_SECONDS: Final = 1.0
"""How long an execution may keep its slot; one that takes longer goes on without."""
RARE_SECONDS: Final = 30.0  # probes that come so rarely need not be so exact:
TOGETHER_SECONDS: Final = 0.5  # they are made in company, for waking up for each costs more than the probe itself

Record = Callable[[PodEvent, Pod | PodRecord | None], None]
Execute = Callable[[Pod, Target, str, str], Awaitable[Report]]
"""Executes a probe once, given the pod's address and the container's id as the API shows it."""
_Key = tuple[str, ProbeKind]


class _PodProbes:
    """The workers of one pod, and what they have stored."""

    __slots__ = ("ended", "pod", "uid", "view", "workers")

    def __init__(self, pod: Pod, uid: PodUID) -> None:
        self.pod = pod
        self.uid = uid
        self.workers: dict[_Key, _Worker] = {}
        self.ended: dict[_Key, str | None] = {}  # workers that ended by themselves, with their last container
        self.view: ProbeView | None = None  # what they know, until one of them knows something new

    def stored(self, kind: ProbeKind) -> dict[str, ProbeResult]:
        """The results of one kind by the container id the API shows."""
        return {
            worker.container_id: worker.result
            for worker in self.workers.values()
            if worker.target.kind is kind and worker.result is not None
        }


class _Worker:
    """One probe of one container: where it stands, what it has stored, and when it is due."""

    __slots__ = ("busy", "due", "group", "period_seconds", "result", "state", "target", "ticked", "timer")

    def __init__(self, group: _PodProbes, target: Target, period_seconds: float, due: float) -> None:
        self.group = group
        self.target = target
        self.period_seconds = period_seconds
        self.due = due
        self.state: Live | Ended = Waiting()
        self.result: ProbeResult | None = None  # for the container that the state names
        self.timer: asyncio.TimerHandle | None = None
        self.busy = False  # executing, or waiting for a slot
        self.ticked = False

    @property
    def key(self) -> _Key:
        """What tells it from the other workers of its pod."""
        return self.target.container.name, self.target.kind

    @property
    def container_id(self) -> str:
        """The container it is about; empty before it has seen one."""
        return "" if isinstance(self.state, Waiting) else self.state.container_id or ""

    def __str__(self) -> str:
        meta = self.group.pod.metadata
        container, kind = self.key
        return f"{kind} probe of container {container} of pod {meta.namespace or 'default'}/{meta.name}"


class ProbeManager:
    """Keeps the probe workers of all pods. While `run` runs, probes are executed."""

    def __init__(
        self,
        *,
        execute: Execute,
        status_of: Callable[[PodUID], PodStatus | None],
        tell: Callable[[ProbeUpdate], None],
        record: Record,
        clock: Clock,
        observer: Observer | None = None,
        slots: int = SLOTS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._execute_once = execute
        self._status_of = status_of
        self._tell = tell
        self._record = record
        self._clock = clock
        self._began = clock.monotonic()
        self._observer = observer or Observer()
        self._free_slots = slots
        self._lease_seconds = lease_seconds
        self._leases: dict[_Worker, asyncio.TimerHandle] = {}
        self._queue: deque[_Worker] = deque()  # due, and waiting for a slot
        self._pods: dict[PodUID, _PodProbes] = {}
        self._own: dict[PodUID, dict[str, str]] = {}  # the last container this agent made, by its name
        self._unprobed = ProbeView()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Execute probes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self._fill_slots()
                await asyncio.get_running_loop().create_future()  # nobody sets it: until cancelled
            finally:
                self._tasks = None
                for group in self._pods.values():
                    for worker in group.workers.values():
                        _cancel_timer(worker)

    # What others ask.

    def view(self, uid: PodUID) -> ProbeView:
        """What a pod's probes know; the same object for as long as nothing changes."""
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
        """A pod's liveness results by the runtime's own container ids."""
        return self._by_bare_id(uid, ProbeKind.LIVENESS)

    def startup(self, uid: PodUID) -> Mapping[str, ProbeResult]:
        """A pod's startup results by the runtime's own container ids."""
        return self._by_bare_id(uid, ProbeKind.STARTUP)

    def _by_bare_id(self, uid: PodUID, kind: ProbeKind) -> Mapping[str, ProbeResult]:
        group = self._pods.get(uid)
        stored = {} if group is None else group.stored(kind)
        return {bare_container_id(container_id): result for container_id, result in stored.items()}

    def __len__(self) -> int:
        return sum(len(group.workers) for group in self._pods.values())

    # What others tell.

    def claim(self, uid: PodUID, container: str, container_id: str) -> None:
        """This agent has made a container: what was published of earlier ones says nothing about it."""
        self._own.setdefault(uid, {})[container] = container_id
        group = self._pods.get(uid)
        if group is not None:
            group.view = None

    def add_pod(self, pod: Pod) -> None:
        """See to it that each probe of a pod has its worker; those it has go on."""
        uid = PodUID(pod.metadata.uid or "")
        group = self._pods.get(uid)
        if group is not None and group.pod is pod and not group.ended:
            return
        for target in probes_of(pod):
            if group is None:
                group = self._pods[uid] = _PodProbes(pod, uid)
            group.pod = pod
            key = (target.container.name, target.kind)
            if key in group.workers or (key in group.ended and not self._is_another(group, key)):
                continue
            group.ended.pop(key, None)
            self._begin(group, target)

    def wake(self, uid: PodUID, containers: Iterable[str]) -> None:
        """Let the readiness probes of these containers tick now, and every period from now on."""
        group = self._pods.get(uid)
        if group is None:
            return
        for name in containers:
            worker = group.workers.get((name, ProbeKind.READINESS))
            if worker is None or worker.busy:  # what it is asking right now is what we want to know
                continue
            # A restarted agent finds all its pods at once: what ran before it keeps to the spread of first ticks.
            if worker.ticked or not self._predates_agent(group, name):
                worker.due = self._clock.monotonic()
                self._schedule(worker)

    def stop_liveness_and_startup(self, pod: Pod) -> None:
        """A pod terminates: nothing shall restart its containers. Sidecars serve to the end, and keep their probes."""
        group = self._pods.get(PodUID(pod.metadata.uid or ""))
        if group is None:
            return
        for container in pod.spec.containers:
            for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
                if (worker := group.workers.get((container.name, kind))) is not None:
                    self._end(worker)

    def remove_pod(self, uid: PodUID) -> None:
        """End all workers of a pod, and forget what they have stored."""
        self._own.pop(uid, None)
        group = self._pods.pop(uid, None)
        if group is not None:
            for worker in tuple(group.workers.values()):
                self._end(worker)

    def keep_only(self, uids: Collection[PodUID]) -> None:
        """End the workers of all other pods."""
        for uid in [uid for uid in {**self._pods, **self._own} if uid not in uids]:
            self.remove_pod(uid)

    # The life of a worker.

    def _begin(self, group: _PodProbes, target: Target) -> None:
        now = self._clock.monotonic()
        period_seconds = _period_seconds(group.pod, target)
        delay_seconds = first_tick_delay_seconds(period_seconds, now - self._began, self._clock.fraction())
        worker = _Worker(group, target, period_seconds, now + delay_seconds)
        group.workers[worker.key] = worker
        group.view = None
        self._schedule(worker)

    def _end(self, worker: _Worker) -> None:
        """End a worker from outside; nobody wants to know any more what it is just asking."""
        if not isinstance(worker.state, Ended):
            self._obey(worker, stop(worker.state))

    def _schedule(self, worker: _Worker) -> None:
        _cancel_timer(worker)
        worker.timer = asyncio.get_running_loop().call_at(worker.due, self._on_timer, worker)

    def _on_timer(self, worker: _Worker) -> None:
        worker.timer = None
        # However many ticks were missed, the next one is the first that lies ahead.
        behind_seconds = max(self._clock.monotonic() - worker.due, 0.0)
        worker.due += worker.period_seconds * (behind_seconds // worker.period_seconds + 1)
        if worker.period_seconds >= RARE_SECONDS:
            worker.due += -worker.due % TOGETHER_SECONDS
        self._tick(worker)

    def _tick(self, worker: _Worker) -> None:
        """Let a worker look at its container. A timer's boundary: what fails here is this worker's own trouble."""
        if isinstance(worker.state, Ended):
            return
        execute = False
        try:
            step = tick(worker.state, worker.target, self._known(worker))
            execute = step.execute
            self._obey(worker, step)
        except Exception:
            log.exception("cannot look after the %s, will try again", worker)
        worker.ticked = True
        if isinstance(worker.state, Probing) and execute:
            self._execute_soon(worker, worker.state)
        elif not isinstance(worker.state, Ended):
            self._schedule(worker)

    def _obey(self, worker: _Worker, step: Step) -> None:
        """Store, forget and tell what a step says."""
        group = worker.group
        worker.state = step.state
        if step.forget is not None:
            worker.result = None
            group.view = None
        news = None
        if step.store is not None and step.store is not worker.result:
            news = step.store if self._is_news(worker, step) else None
            worker.result = step.store
            group.view = None
        if isinstance(step.state, Ended):
            _cancel_timer(worker)
            del group.workers[worker.key]
            group.ended[worker.key] = step.state.container_id
            group.view = None
            self._observer.gone(group.pod, *worker.key)
        if news is not None:
            self._tell(ProbeUpdate(worker.target.kind, group.uid, worker.container_id, news))

    def _is_news(self, worker: _Worker, step: Step) -> bool:
        """Whether a result, other than the one before, makes a difference to anybody.

        What counts until a probe has spoken is taken for granted by all, unless the status says otherwise; telling it
        would cost each new pod a pass over nothing.
        """
        if worker.result is not None or step.reason is Reason.DECIDED:
            return True
        found = _container_status(self._status_of(worker.group.uid), worker.target.container.name)
        match worker.target.kind:
            case ProbeKind.LIVENESS:
                return step.store is ProbeResult.FAILURE
            case ProbeKind.READINESS:
                return found is None or found.ready
            case ProbeKind.STARTUP:
                return found is None or bool(found.started)

    def _known(self, worker: _Worker) -> Known:
        group = worker.group
        now, monotonic = self._clock.now(), self._clock.monotonic()
        return Known(group.pod, self._status_of(group.uid), None, now, monotonic, self._own_of(group.uid))

    def _own_of(self, uid: PodUID) -> frozenset[str]:
        return frozenset(self._own.get(uid, {}).values())

    def _is_another(self, group: _PodProbes, key: _Key) -> bool:
        """Whether there is a container that the worker which ended has not seen."""
        found = _container_status(self._status_of(group.uid), key[0])
        return found is not None and found.container_id != group.ended[key]

    def _predates_agent(self, group: _PodProbes, container: str) -> bool:
        found = _container_status(self._status_of(group.uid), container)
        return found is not None and predates_agent(found, self._own_of(group.uid))

    # Executing.

    def _execute_soon(self, worker: _Worker, state: Probing) -> None:
        """Execute a probe now if there is a free slot, else in its turn."""
        worker.busy = True
        if self._tasks is None or self._free_slots <= 0:
            self._queue.append(worker)
            return
        self._free_slots -= 1
        lease = asyncio.get_running_loop().call_later(self._lease_seconds, self._give_back, worker)
        self._leases[worker] = lease
        self._tasks.create_task(self._execute(worker, state))

    def _give_back(self, worker: _Worker) -> None:
        """Free the slot that a worker holds: it is done, or it takes too long for others to wait."""
        lease = self._leases.pop(worker, None)
        if lease is not None:
            lease.cancel()
            self._free_slots += 1
            self._fill_slots()

    def _fill_slots(self) -> None:
        """Let those who wait have the free slots. They look again first: the world may have changed."""
        while self._queue and self._free_slots > 0 and self._tasks is not None:
            worker = self._queue.popleft()
            worker.busy = False
            self._tick(worker)

    async def _execute(self, worker: _Worker, state: Probing) -> None:
        """Execute a probe and draw the conclusions. A task's boundary."""
        again = False
        try:
            again = self._conclude(worker, state, await self._ask(worker, state))
        except Exception:
            log.exception("cannot execute the %s, will try again", worker)
        finally:
            worker.busy = False
            if self._tasks is not None:
                self._give_back(worker)
                if again:
                    self._tick(worker)
                elif not isinstance(worker.state, Ended):
                    self._schedule(worker)

    async def _ask(self, worker: _Worker, state: Probing) -> ProbeResult | None:
        """Execute a probe until it says something, at most three times. None: it said nothing."""
        group, target = worker.group, worker.target
        began = self._clock.monotonic()
        executions = 0
        verdict: Verdict | Again = Again.RETRY
        while not isinstance(verdict, Verdict):
            status = self._status_of(group.uid) or PodStatus()
            report = await self._execute_once(group.pod, target, status.pod_ip or "", state.container_id)
            executions += 1
            verdict = judge(target.kind, report, executions)
        if worker.state is not state:  # it was stopped
            return None
        if verdict.event is not None:
            path = _container_path(group.pod, target.container)
            self._record(replace(verdict.event, uid=group.uid, container_path=path), group.pod)
        if verdict.result is not None:
            seconds = self._clock.monotonic() - began
            self._observer.probed(group.pod, target.container.name, target.kind, verdict.result, seconds)
        return verdict.result

    def _conclude(self, worker: _Worker, state: Probing, result: ProbeResult | None) -> bool:
        """Count what an execution said, if its container is still there to be probed; True: there is another by now."""
        if worker.state is not state:
            return False
        step = tick(state, worker.target, self._known(worker))
        if step.execute and step.state == state:
            self._obey(worker, after(state, worker.target, result))
            return False
        self._obey(worker, step)
        return step.execute


def _period_seconds(pod: Pod, target: Target) -> float:
    """How often to probe; an annotation that cannot be used is as good as none."""
    try:
        return probe_period_seconds(pod, target)
    except BadInput as error:
        log.warning("%s; the period of the spec is used", error)
        return float(target.probe.period_seconds or DEFAULT_PERIOD_SECONDS)


def _container_status(status: PodStatus | None, name: str) -> ContainerStatus | None:
    """The status of a container that exists."""
    if status is None:
        return None
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return next((found for found in statuses if found.name == name and found.container_id), None)


def _container_path(pod: Pod, container: Container) -> str:
    """Where a container stands in its pod, as events name it."""
    is_regular = any(regular.name == container.name for regular in pod.spec.containers)
    return f"spec.{'containers' if is_regular else 'initContainers'}{{{container.name}}}"


def _cancel_timer(worker: _Worker) -> None:
    if worker.timer is not None:
        worker.timer.cancel()
        worker.timer = None
