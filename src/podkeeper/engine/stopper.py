"""Stopping containers: hook, turn, TERM and KILL within one grace, and at once when the grace shrinks.

    kill_pod --begin--> one ending per container:  preStop hook -> wait for its turn -> stop -> gone
                `--- all gone ---> sandboxes are stopped

In: pods and containers that must end, and how long they may take. Out: nothing of them runs any more, or what kept
that from being so. How long and in which order is decided by `rules.container_grace` and `rules.termination_order`.

An ending belongs to the container, not to the pass that asked for it. It goes on in the background; a pass only
waits for it, and a cancelled pass stops waiting at once. The next pass finds the ending under way and joins it: the
hook is not run twice, nobody is killed without a grace because somebody else's pass was cut short, and if the new
grace is shorter, the ending is told. A hook or a wait for others then ends sooner; a stop that is already with the
runtime cannot be taken back, so another one with the shorter grace is sent beside it, and whichever sees the
container gone first ends the ending. A grace never grows.

An ending that failed keeps what was spent: the next try does not begin anew. The Go ancestors are `killContainer`
and `killPodWithSyncResult` in pkg/kubelet/kuberuntime.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from podkeeper.engine.background import Spawn
from podkeeper.engine.hooks import HookRunner
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.container_events import Reason, normal, warning
from podkeeper.rules.container_grace import GraceBudget, KillReason, grace_budget
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.termination_order import termination_order

log = logging.getLogger(__name__)

MAY_RUN = (ContainerState.RUNNING, ContainerState.UNKNOWN)

T = TypeVar("T")
Spec = Container | EphemeralContainer


class Stops(Protocol):
    """What is needed of a runtime. Stops of one container may be under way beside each other."""

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, wait up to the grace, then force it. Returns once it has exited."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox, and by force whatever still runs in it."""


class _Ending:
    """One container on its way out."""

    __slots__ = (
        "awaited",
        "container",
        "end",
        "gone",
        "grace",
        "granted_at",
        "hooked",
        "limit",
        "pod",
        "pod_ip",
        "shortened",
        "spec",
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
        self.awaited: tuple[_Ending, ...] = ()  # who must be gone before it is stopped
        self.hooked = False  # its hook has been begun
        self.gone = asyncio.Event()
        self.end: asyncio.Future[None] | None = None  # of the latest try
        self.limit: asyncio.Timeout | None = None  # of the step that is under way and can be cut short
        self.shortened: asyncio.Future[None] | None = None  # set when a stop that is under way gives too much time

    @property
    def deadline(self) -> float:
        """When the grace is over."""
        return self.granted_at + self.grace.seconds

    def left(self, now: float) -> GraceBudget:
        """What is left of the grace."""
        return self.grace.after(now - self.granted_at)

    def shorten(self, grace: GraceBudget, now: float) -> None:
        """Let the grace end sooner; it never grows."""
        if now + grace.seconds >= self.deadline:
            return
        self.grace, self.granted_at = grace, now
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(self.deadline)
        if self.shortened is not None and not self.shortened.done():
            self.shortened.set_result(None)


class PodStopper:
    """Stops containers and sandboxes."""

    def __init__(
        self,
        *,
        runtime: Stops,
        hooks: HookRunner,
        clock: Clock,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        spawn: Spawn,
    ) -> None:
        self._runtime = runtime
        self._hooks = hooks
        self._clock = clock
        self._record = record
        self._spawn = spawn
        self._endings: dict[PodUID, dict[str, _Ending]] = {}  # by pod and container id, until they are gone

    async def kill_pod(
        self, pod: Pod | None, record: PodRecord, grace_override_seconds: int | None
    ) -> tuple[TryLater, ...]:
        """Stop all containers of a pod, then its sandboxes. Returns what failed. Without a spec there are no hooks."""
        containers = [found for found in record.containers if found.state in MAY_RUN]
        endings = {
            found.id: self._begin(pod, record, found, KillReason.UNKNOWN, "", grace_override_seconds)
            for found in containers
        }
        if pod is not None:
            order = termination_order(pod.spec, [found.name for found in containers])
            for ending in endings.values():
                awaited = order[ending.container.name]
                ending.awaited = tuple(other for other in endings.values() if other.container.name in awaited)
        errors = await self._all_ended(endings.values())
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
        """Stop some containers of a pod that lives on, all at the same time. Returns what failed."""
        known = {found.id: found for found in record.containers}
        endings = [
            self._begin(
                pod,
                record,
                known.get(kill.id) or ContainerRecord(id=kill.id, name=kill.name, state=ContainerState.UNKNOWN),
                kill.reason,
                kill.message,
                grace_override_seconds,
            )
            for kill in kills
        ]
        return tuple(await self._all_ended(endings))

    def forget(self, uid: PodUID) -> None:
        """Forget what was spent on containers of a pod that is no more."""
        self._endings.pop(uid, None)

    # One container.

    def _begin(
        self,
        pod: Pod | None,
        record: PodRecord,
        container: ContainerRecord,
        reason: KillReason,
        message: str,
        override_seconds: int | None,
    ) -> _Ending:
        """Begin to stop a container, or join the ending that is under way."""
        uid, now = PodUID(record.uid), self._clock.monotonic()
        endings = self._endings.setdefault(uid, {})
        ending = endings.get(container.id)
        grace = _grace(pod, container.name, reason, override_seconds)
        if ending is None:
            pod_ip = record.ips[0] if record.ips else ""
            ending = endings[container.id] = _Ending(container, pod, pod_ip, grace, now)
            text = message or f"Stopping container {container.name}"
            log.info("stopping container %s of pod %s within %s s: %s", container.name, uid, grace.seconds, text)
            self._record(normal(pod, container.name, Reason.KILLING, text, container.id), pod or record)
        else:
            ending.shorten(grace, now)
        if ending.end is None or ending.end.done():
            ending.end = self._spawn(self._end(uid, ending))
        return ending

    async def _all_ended(self, endings: Iterable[_Ending]) -> list[TryLater]:
        """Wait until each ending has come to its end, one way or the other."""
        ends = [ending.end for ending in endings if ending.end is not None]
        if ends:
            await asyncio.wait(ends)
        errors: list[TryLater] = []
        for end in ends:
            if end.cancelled():
                raise asyncio.CancelledError  # the agent stops
            error = end.exception()
            if isinstance(error, TryLater):
                errors.append(error)
            elif error is not None:
                raise error
        return errors

    async def _end(self, uid: PodUID, ending: _Ending) -> None:
        """Bring one container to its end."""
        await self._run_hook(ending)
        await self._await_turn(ending)
        await self._stop(ending)
        ending.gone.set()
        endings = self._endings.get(uid, {})
        if endings.get(ending.container.id) is ending:
            del endings[ending.container.id]
            if not endings:
                del self._endings[uid]

    async def _run_hook(self, ending: _Ending) -> None:
        """Execute the preStop hook, if there is one and time for it."""
        pod, spec, container = ending.pod, ending.spec, ending.container
        hook = None if spec is None or spec.lifecycle is None else spec.lifecycle.pre_stop
        seconds = ending.left(self._clock.monotonic()).seconds
        if pod is None or spec is None or hook is None or ending.hooked or seconds <= 0:
            return
        ending.hooked = True
        failure: str | None = "it did not end within the grace"
        async with _within_grace(ending):
            failure = await self._hooks.execute(hook, pod, spec, container.id, ending.pod_ip, seconds)
        if failure is not None:
            log.warning("preStop hook of container %s of pod %s failed: %s", container.name, pod.metadata.uid, failure)
            # Without the failure's text: it may hold secrets.
            self._record(warning(pod, container.name, Reason.PRE_STOP_FAILED, "PreStopHook failed"), pod)

    async def _await_turn(self, ending: _Ending) -> None:
        """Wait until those are gone who go first, as long as there is time."""
        if not ending.awaited:
            return
        async with _within_grace(ending):
            for other in ending.awaited:
                await other.gone.wait()

    async def _stop(self, ending: _Ending) -> None:
        """Let the runtime stop a container; once more whenever the grace shrinks meanwhile."""
        calls: set[asyncio.Future[None]] = set()
        try:
            while True:
                shortened = ending.shortened = asyncio.get_running_loop().create_future()
                seconds = ending.left(self._clock.monotonic()).stop_seconds
                calls.add(self._spawn(self._runtime.stop_container(ending.container.id, seconds)))
                await asyncio.wait({*calls, shortened}, return_when=asyncio.FIRST_COMPLETED)
                if done := [call for call in calls if call.done()]:
                    # One that saw the container gone counts, whatever became of another.
                    return min(done, key=lambda call: call.exception() is not None).result()
        finally:
            ending.shortened = None


@asynccontextmanager
async def _within_grace(ending: _Ending) -> AsyncIterator[None]:
    """Break off what is done inside, quietly, when the grace ends: now or as soon as it is shortened."""
    try:
        async with asyncio.timeout_at(ending.deadline) as ending.limit:
            yield
    except TimeoutError:
        pass
    finally:
        ending.limit = None


def _spec(pod: Pod, name: str) -> Spec | None:
    spec = pod.spec
    containers: tuple[Spec, ...] = (
        *spec.containers,
        *(spec.init_containers or ()),
        *(spec.ephemeral_containers or ()),
    )
    return next((container for container in containers if container.name == name), None)


def _grace(pod: Pod | None, name: str, reason: KillReason, override_seconds: int | None) -> GraceBudget:
    """The grace of a container; of one whose pod nobody knows, what the killer says."""
    if pod is None:
        return GraceBudget(override_seconds or 0)
    spec = _spec(pod, name)
    # Only probes matter beside the pod's own grace, and ephemeral containers have none.
    container = spec if isinstance(spec, Container) else Container(name=name)
    return grace_budget(pod, container, reason, override_seconds)
