"""The interface of a running agent for the CLI, the local API and the demo.

    CLI, local API, demo --> Agent --> modules of the engine

Queries are synchronous and return values. They wait for nothing and change nothing, except `kill`,
`request_housekeeping` and `run_command`. Users of an agent do not use the modules of the engine directly. Only tests
and the simulation inspect `engine`. Kubelet counterpart: the `HostInterface` of pkg/kubelet/server.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from podkeeper.app.build import Engine
from podkeeper.engine.bounded_runtime import SlowCall
from podkeeper.engine.history import Explanation
from podkeeper.engine.metrics import Metrics
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.events import RecordedEvent
from podkeeper.rules.static.mirror import full_name
from podkeeper.rules.worker.predicates import is_over

log = logging.getLogger(__name__)

NO_TIMEOUT = 0.0


class Agent:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def run(self) -> None:
        """Run until cancelled. The pods keep running."""
        await self.engine.run()

    async def flush(self, within_seconds: float) -> None:
        """Send pending statuses and events to the API. Must be called before a graceful exit, while the agent runs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                # Statuses before events: a lost final status is what users notice (k/k 110755).
                await self.engine.statuses.sync_batch(every=True)
                await self.engine.events.flush()

    # The agent itself.

    @property
    def node_name(self) -> str:
        return self.engine.settings.node_name

    @property
    def runtime_name(self) -> str:
        return self.engine.runtime.name

    @property
    def log_root(self) -> str:
        """The directory of the container logs."""
        return self.engine.settings.log_root

    @property
    def clock(self) -> Clock:
        return self.engine.ports.clock

    @property
    def metrics(self) -> Metrics:
        """The metrics since the start of this agent."""
        return self.engine.metrics

    def health(self) -> tuple[str, ...]:
        """Return problems of the agent itself. Empty if it is healthy."""
        return tuple(filter(None, (self.engine.loop.health(), self.engine.pleg.health())))

    def sources_ready(self) -> bool:
        """Return whether each source has sent its pods at least once."""
        return self.engine.storage.has_seen([source.name for source in self.engine.ports.sources])

    def slow_calls(self) -> Sequence[SlowCall]:
        """Return the runtime calls that have not been answered for a long time."""
        return self.engine.runtime.slow_calls()

    def subscribe(
        self,
        *,
        status_changed: Callable[[PodUID, PodStatus], None],
        pod_changed: Callable[[PodUID], None],
        pods_changed: Callable[[], None],
    ) -> None:
        """Call the subscribers after changes.

        `pod_changed`: the worker of a pod changed its state, or the runtime its containers.
        `pods_changed`: the loop handled an update of a source, or housekeeping removed something.
        """
        self.engine.statuses.subscribe(status_changed)
        self.engine.history.subscribe(pod_changed)
        self.engine.cache.subscribe(pod_changed)
        self.engine.loop.subscribe(pods_changed)

    # Pods.

    def pods(self) -> tuple[Pod, ...]:
        """Return the desired pods, each with its newest status."""
        return tuple(map(self.with_status, self.engine.manager.pods()))

    def pod(self, uid: PodUID) -> Pod | None:
        """Return a desired pod with its newest status."""
        pod = self.engine.manager.pod_by_uid(uid)
        return None if pod is None else self.with_status(pod)

    def with_status(self, pod: Pod) -> Pod:
        """Return the pod with its newest status."""
        status = self.status_of(PodUID(pod.metadata.uid or ""))
        return pod if status is None else replace(pod, status=status)

    def status_of(self, uid: PodUID) -> PodStatus | None:
        return self.engine.statuses.get_pod_status(uid)

    def record(self, uid: PodUID) -> PodRecord:
        """Return what the runtime last reported about a pod. Empty if it does not have the pod."""
        return self.engine.cache.get(uid)

    def events_of(self, uid: PodUID) -> Sequence[RecordedEvent]:
        """Return the last events about a pod, oldest first."""
        return self.engine.events.events_of(uid)

    def explain(self, uid: PodUID) -> Explanation:
        """Return a pod's state, what it waits for, and its timeline."""
        return self.engine.history.explain(uid)

    def waits_for_predecessor(self, pod: Pod) -> bool:
        """Return whether another static pod with the same name must end before this one starts."""
        return PodUID(pod.metadata.uid or "") in self.engine.workers.waiting(full_name(pod))

    # Termination.

    def has_ended(self, uid: PodUID) -> bool:
        """Return whether no source has the pod and its worker has finished."""
        return self.engine.facts.has_ended(uid)

    def is_cleaned_up(self, uid: PodUID) -> bool:
        """Return whether the runtime has nothing of an ended pod, and housekeeping removes nothing of it."""
        return self.engine.facts.has_no_containers(uid) and not self.engine.housekeeping.is_removing(uid)

    def request_housekeeping(self) -> None:
        """Run housekeeping at once, because a caller waits until a pod is removed."""
        self.engine.housekeeping.request()

    def kill(self, pod: Pod, grace_seconds: int) -> None:
        """Begin to kill a pod with another grace period than that of its spec. A pod that does not run is ignored."""
        if not is_over(self.engine.workers.state(PodUID(pod.metadata.uid or ""))):
            self.engine.background.spawn(self._kill(pod, grace_seconds))

    async def _kill(self, pod: Pod, grace_seconds: int) -> None:
        try:
            await self.engine.workers.kill_pod(pod, grace_override_seconds=grace_seconds)
        except TryLater as error:
            log.warning("pod %s did not stop within its grace period: %s", pod.metadata.name, error)

    # Commands.

    async def run_command(self, container_id: str, command: Sequence[str]) -> CommandEnd:
        """Run a command in a container until it exits. Return its output and exit code."""
        # Not through the bounded runtime: a command of a user may run for hours and must not occupy a slot.
        return await self.engine.ports.runtime.exec_sync(container_id, command, NO_TIMEOUT)
