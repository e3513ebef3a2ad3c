"""Stop containers: preStop hook, order, TERM and KILL within one grace period.

    kill_pod --begin--> one stop per container:  preStop hook -> wait for others -> stop call -> exited
                `--- all exited ---> stop the sandboxes

In: pods and containers that must stop, and their grace periods. Out: all containers have exited, or the errors.
`rules.container.grace` decides how long a stop may take, `rules.container.termination_order` the order.

A stop belongs to the container, not to the sync that requested it. It continues in the background. A sync only waits
for it, and a cancelled sync stops waiting at once. The next sync joins the stop in progress, so the hook does not run
twice and the grace period does not begin again.

A grace period can only become shorter. A hook, or the wait for other containers, then ends earlier. A stop call that
the runtime has already received cannot be changed. So a second call with the shorter grace period is sent, and the
first of them to succeed ends the stop.

A failed stop keeps its start time: the next attempt only has the rest of the grace period.
Kubelet counterpart: `killContainer` and `killPodWithSyncResult` in pkg/kubelet/kuberuntime.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from podkeeper.engine.background import Spawn
from podkeeper.engine.events import EventFunction
from podkeeper.engine.hooks import HookRunner
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import AnyContainer
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.container.events import EventReason, normal, warning
from podkeeper.rules.container.grace import GraceBudget, KillReason, grace_budget
from podkeeper.rules.container.termination_order import termination_order
from podkeeper.rules.plan.actions import ContainerToKill

log = logging.getLogger(__name__)

# The kubelet skips containers in an unknown state. They may still run, so they are stopped as well.
MAY_RUN = (RecordState.RUNNING, RecordState.UNKNOWN)


class _ContainerStop:
    """The stop of one container, from the first request until the container has exited."""

    __slots__ = (
        "container",
        "exited",
        "grace",
        "granted_at",
        "hook_ran",
        "pod",
        "pod_ip",
        "shortened",
        "spec",
        "task",
        "timeout",
        "waits_for",
    )

    def __init__(
        self, container: ContainerRecord, pod: Pod | None, pod_ip: str, grace: GraceBudget, granted_at: float
    ) -> None:
        self.container = container
        self.pod = pod
        self.spec = None if pod is None else _spec(pod, container.name)
        self.pod_ip = pod_ip
        self.grace = grace
        self.granted_at = granted_at  # on the monotonic clock
        self.waits_for: tuple[_ContainerStop, ...] = ()  # these must exit before the stop call is sent
        self.hook_ran = False  # the preStop hook has been started
        self.exited = asyncio.Event()
        self.task: asyncio.Future[None] | None = None  # the latest attempt
        self.timeout: asyncio.Timeout | None = None  # of the current step, if a shorter grace period can end it
        self.shortened: asyncio.Future[None] | None = None  # set to send another stop call with a shorter grace period

    @property
    def deadline(self) -> float:
        return self.granted_at + self.grace.seconds

    def remaining(self, now: float) -> GraceBudget:
        return self.grace.after(now - self.granted_at)

    def shorten(self, grace: GraceBudget, now: float) -> None:
        """Shorten the grace period. A longer one is ignored."""
        if now + grace.seconds >= self.deadline:
            return
        self.grace, self.granted_at = grace, now
        if self.timeout is not None and not self.timeout.expired():
            self.timeout.reschedule(self.deadline)
        if self.shortened is not None and not self.shortened.done():
            self.shortened.set_result(None)


class PodStopper:
    def __init__(
        self,
        *,
        runtime: Runtime,
        hooks: HookRunner,
        clock: Clock,
        record_event: EventFunction,
        spawn: Spawn,
    ) -> None:
        self._runtime = runtime
        self._hooks = hooks
        self._clock = clock
        self._record_event = record_event
        self._spawn = spawn
        self._stops: dict[PodUID, dict[str, _ContainerStop]] = {}  # by pod and container ID, until it has exited

    async def kill_pod(
        self, pod: Pod | None, record: PodRecord, grace_override_seconds: int | None
    ) -> tuple[TryLater, ...]:
        """Stop all containers of a pod, then its sandboxes. Return the errors. Without a pod, no hooks run."""
        containers = [found for found in record.containers if found.state in MAY_RUN]
        stops = {
            found.id: self._begin(pod, record, found, KillReason.UNKNOWN, "", grace_override_seconds)
            for found in containers
        }
        if pod is not None:
            order = termination_order(pod.spec, [found.name for found in containers])
            for stop in stops.values():
                names = order[stop.container.name]
                stop.waits_for = tuple(other for other in stops.values() if other.container.name in names)
        # All containers before the sandboxes, because stopping a sandbox kills its containers without a grace period.
        errors = await self._wait_for(stops.values())
        # As in the kubelet, also sandboxes that are not ready.
        for sandbox in record.sandboxes:
            try:
                await self._runtime.stop_sandbox(sandbox.id)
            except TryLater as error:
                errors.append(error)
        return tuple(errors)

    async def kill_containers(
        self,
        pod: Pod,
        record: PodRecord,
        kills: Sequence[ContainerToKill],
        grace_override_seconds: int | None = None,
    ) -> tuple[TryLater, ...]:
        """Stop some containers of a pod that keeps running, all at the same time. Return the errors."""
        known = {found.id: found for found in record.containers}
        stops = [
            self._begin(
                pod,
                record,
                known.get(kill.id) or ContainerRecord(id=kill.id, name=kill.name, state=RecordState.UNKNOWN),
                kill.reason,
                kill.message,
                grace_override_seconds,
            )
            for kill in kills
        ]
        return tuple(await self._wait_for(stops))

    def forget(self, uid: PodUID) -> None:
        """Forget the stops of a removed pod. A later stop begins with the full grace period."""
        self._stops.pop(uid, None)

    # One container.

    def _begin(
        self,
        pod: Pod | None,
        record: PodRecord,
        container: ContainerRecord,
        reason: KillReason,
        message: str,
        override_seconds: int | None,
    ) -> _ContainerStop:
        """Begin to stop a container, or join the stop in progress."""
        uid, now = PodUID(record.uid), self._clock.monotonic()
        stops = self._stops.setdefault(uid, {})
        stop = stops.get(container.id)
        # A stop in progress is only shortened: its hook does not run twice, and its grace period does not begin again
        # (k/k 115817).
        grace = _grace(pod, container.name, reason, override_seconds)
        if stop is None:
            pod_ip = record.ips[0] if record.ips else ""
            stop = stops[container.id] = _ContainerStop(container, pod, pod_ip, grace, now)
            text = message or f"Stopping container {container.name}"
            log.info("stopping container %s of pod %s within %s s: %s", container.name, uid, grace.seconds, text)
            self._record_event(normal(pod, container.name, EventReason.KILLING, text, container.id), pod or record)
        else:
            stop.shorten(grace, now)
        if stop.task is None or stop.task.done():
            stop.task = self._spawn(self._stop(uid, stop))
        return stop

    async def _wait_for(self, stops: Iterable[_ContainerStop]) -> list[TryLater]:
        """Wait until each stop has succeeded or failed. Return the errors."""
        tasks = [stop.task for stop in stops if stop.task is not None]
        if tasks:
            # `wait` and not `gather`: if this sync is cancelled, the stops continue.
            await asyncio.wait(tasks)
        errors: list[TryLater] = []
        for task in tasks:
            if task.cancelled():
                raise asyncio.CancelledError  # the agent is stopping
            error = task.exception()
            if isinstance(error, TryLater):
                errors.append(error)
            elif error is not None:
                raise error
        return errors

    async def _stop(self, uid: PodUID, stop: _ContainerStop) -> None:
        # The kubelet's order. The hook runs at once, even if the container must wait for others before it gets its
        # signal.
        await self._run_hook(stop)
        await self._wait_for_others(stop)
        await self._send_stop(stop)
        # Only after success: containers that wait for this one continue when it has exited, or when their grace period
        # ends.
        stop.exited.set()
        stops = self._stops.get(uid, {})
        if stops.get(stop.container.id) is stop:
            del stops[stop.container.id]
            if not stops:
                del self._stops[uid]

    async def _run_hook(self, stop: _ContainerStop) -> None:
        """Execute the preStop hook, if there is one and time is left."""
        pod, spec, container = stop.pod, stop.spec, stop.container
        hook = None if spec is None or spec.lifecycle is None else spec.lifecycle.pre_stop
        seconds = stop.remaining(self._clock.monotonic()).seconds
        if pod is None or spec is None or hook is None or stop.hook_ran or seconds <= 0:
            return
        # Before the hook and not after it: a hook that was interrupted must not run twice.
        stop.hook_ran = True
        failure: str | None = "it did not end within the grace period"
        async with _within_grace(stop):
            failure = await self._hooks.execute(hook, pod, spec, container.id, stop.pod_ip, seconds)
        if failure is not None:
            log.warning("preStop hook of container %s of pod %s failed: %s", container.name, pod.metadata.uid, failure)
            # The event does not contain the failure, because command output may contain secrets.
            self._record_event(warning(pod, container.name, EventReason.PRE_STOP_FAILED, "PreStopHook failed"), pod)

    async def _wait_for_others(self, stop: _ContainerStop) -> None:
        """Wait for the containers that must exit first, at most until the grace period ends."""
        if not stop.waits_for:
            return
        async with _within_grace(stop):
            for other in stop.waits_for:
                await other.exited.wait()

    async def _send_stop(self, stop: _ContainerStop) -> None:
        """Send the stop call, and another one whenever the grace period becomes shorter."""
        calls: set[asyncio.Future[None]] = set()
        try:
            while True:
                shortened = stop.shortened = asyncio.get_running_loop().create_future()
                seconds = stop.remaining(self._clock.monotonic()).stop_seconds
                # The runtime cannot change a stop that it has received, so several calls may be in flight.
                calls.add(self._spawn(self._runtime.stop_container(stop.container.id, seconds)))
                await asyncio.wait({*calls, shortened}, return_when=asyncio.FIRST_COMPLETED)
                if done := [call for call in calls if call.done()]:
                    # If one call succeeded, the container has exited, even if another call failed.
                    return min(done, key=lambda call: call.exception() is not None).result()
        finally:
            stop.shortened = None


@asynccontextmanager
async def _within_grace(stop: _ContainerStop) -> AsyncIterator[None]:
    """Cancel the body when the grace period ends, without an error. A shorter grace period applies at once."""
    try:
        async with asyncio.timeout_at(stop.deadline) as stop.timeout:
            yield
    except TimeoutError:
        pass
    finally:
        stop.timeout = None


def _spec(pod: Pod, name: str) -> AnyContainer | None:
    spec = pod.spec
    containers: tuple[AnyContainer, ...] = (
        *spec.containers,
        *(spec.init_containers or ()),
        *(spec.ephemeral_containers or ()),
    )
    return next((container for container in containers if container.name == name), None)


def _grace(pod: Pod | None, name: str, reason: KillReason, override_seconds: int | None) -> GraceBudget:
    """Return the grace period of a container. For an unknown pod, it is the override."""
    if pod is None:
        return GraceBudget(override_seconds or 0)
    spec = _spec(pod, name)
    # Only probes can override the pod's grace period, and ephemeral containers have none.
    container = spec if isinstance(spec, Container) else Container(name=name)
    return grace_budget(pod, container, reason, override_seconds)
