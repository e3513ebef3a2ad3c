"""The care for containers' logs: large ones are rotated, old ones removed.

    see the log tree -> list the runtime -> decide at one moment -> remove, rotate, compress

A look comes every interval, sooner when a log will be full by then. What is decided about the files of a running
container is in `rules.log_rotation`. With a container its log goes, and with a pod its directory: once every source
has spoken, and neither they, nor the workers, nor the runtime know of the pod any more. The tree is seen before the
runtime is listed: so who is in the tree and not in the list is gone, and not just coming.

A log is rotated at once when it is seen to be full: its file gets another name, and the runtime is asked to begin a
new one. A runtime that cannot is not left without a log: the file gets its name back. Only to be compressed do logs
wait for each other. Nothing is remembered that matters: killed anywhere, the next look of the next agent goes on.

The Go ancestors are pkg/kubelet/logs/container_log_manager.go and `evictPodLogsDirectories` in
pkg/kubelet/kuberuntime/kuberuntime_gc.go.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.ports.logs import LogFiles
from podkeeper.rules.log_rotation import (
    NOTHING_TO_DO,
    SHORTEST_PAUSE_SECONDS,
    UNFINISHED,
    Plan,
    Policy,
    attempt_of,
    outdated,
    pause_seconds,
    plan_of,
)
from podkeeper.rules.naming import container_log_name, log_directory_name, uid_of_log_directory

log = logging.getLogger(__name__)

REOPEN_SECONDS: Final = 10.0


class Runtime(Protocol):
    """What is asked of the runtime."""

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod the runtime has anything of."""

    async def reopen_log(self, container_id: str) -> None:
        """Let a container's log go on in a new file of the same name."""


_Key = tuple[str, str, str]
"""A log: its pod's directory, its container, its name."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A log that a container writes to, as a look found it."""

    size: int
    begins_anew: bool  # it is being rotated


class LogCare:
    """Cares for the logs of all containers, as long as the agent lives."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        files: LogFiles,
        clock: Clock,
        policy: Policy,
        is_gone: Callable[[PodUID], bool],
    ) -> None:
        """`is_gone` tells whether nobody but perhaps the runtime knows of a pod any more, and nobody ever will."""
        self._runtime = runtime
        self._files = files
        self._clock = clock
        self._policy = policy
        self._policy_at_rest = replace(policy, max_bytes=None)  # nothing is rotated that nobody writes to
        self._is_gone = is_gone
        self._workers = asyncio.Semaphore(policy.workers)
        self._at_work: set[_Key] = set()
        self._compressing: set[_Key] = set()
        self._written: dict[_Key, _Written] | None = None  # at the last look
        self._looked_at = clock.monotonic()
        self._told: dict[object, str] = {}  # trouble that was told of

    async def run(self) -> None:
        """Look after the logs until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                pause = self._policy.interval_seconds
                try:
                    pause = await self.look(group)
                    self._told.pop("look", None)
                except TryLater as error:
                    self._tell_once("look", error)
                except Exception:
                    log.exception("caring for logs failed in an unforeseen way, next look in %g s", pause)
                await asyncio.sleep(pause)

    async def look(self, group: asyncio.TaskGroup) -> float:
        """See what there is and begin what must be done, in the group. Returns how long to wait for the next look."""
        tree = await self._files.survey()
        records = await self._runtime.list_pods()
        # From here on nothing awaits: what is decided is true when it is begun.
        self._remove_pods(tree, records, group)
        by_directory = {log_directory_name(each.namespace, each.name, each.uid): each for each in records}
        self._reopen_lost(tree, by_directory, group)
        written: dict[_Key, _Written] = {}
        for logs in tree.logs:
            if (record := by_directory.get(logs.pod)) is not None:
                containers = [each for each in record.containers if each.name == logs.container]
                self._care_for(logs, containers, written, group)
        return self._pause(written)

    # What is decided.

    def _remove_pods(self, tree: LogTree, records: Iterable[PodRecord], group: asyncio.TaskGroup) -> None:
        known = {each.uid for each in records}
        gone = [pod for pod in tree.pods if (uid := uid_of_log_directory(pod)) not in known and self._may_go(pod, uid)]
        for pod in gone:
            try:
                self._files.put_aside(pod)
            except TryLater as error:
                self._tell_once(pod, error)
            else:
                log.info("the logs of pod %s go: the pod is gone", pod)
        if gone or tree.has_litter:
            self._begin(("", "", ""), self._files.clear, group)

    def _may_go(self, directory: str, uid: str) -> bool:
        """Whether a directory is a pod's, and the pod is gone. What else lies there is not ours."""
        return directory.count("_") == 2 and bool(uid) and self._is_gone(PodUID(uid))

    def _reopen_lost(self, tree: LogTree, records: Mapping[str, PodRecord], group: asyncio.TaskGroup) -> None:
        """Find containers that run and have no log: somebody was killed between two steps of a rotation."""
        there = {(logs.pod, logs.container): logs for logs in tree.logs}
        for pod, record in records.items():
            for container in record.containers:
                if container.state is not ContainerState.RUNNING:
                    continue
                logs = there.get((pod, container.name)) or ContainerLogs(pod, container.name, {})
                name = container_log_name(container.restart_count)
                if name not in logs.sizes and not self._files.exists(logs, name):
                    self._begin((pod, container.name, name), partial(self._reopen, container), group)

    def _care_for(
        self,
        logs: ContainerLogs,
        containers: Sequence[ContainerRecord],
        written: "dict[_Key, _Written]",
        group: asyncio.TaskGroup,
    ) -> None:
        """Begin what must be done about the logs of all attempts of a container; note which are written to."""
        writers = {each.restart_count: each for each in containers if each.state is ContainerState.RUNNING}
        old = outdated(logs.sizes, {each.restart_count for each in containers})
        if old:
            self._begin((logs.pod, logs.container, ""), partial(self._files.remove, logs, old), group)
        names = logs.sizes.keys() - set(old)
        for attempt in sorted({attempt for name in names if (attempt := attempt_of(name)) is not None}):
            name, writer = container_log_name(attempt), writers.get(attempt)
            key, size = (logs.pod, logs.container, name), logs.sizes.get(name, 0)
            policy = self._policy if writer is not None else self._policy_at_rest
            plan = plan_of(name, size, names, policy, self._clock.now())
            if writer is not None:
                written[key] = _Written(size, begins_anew=bool(plan.rotate_to))
            if key in self._compressing:
                plan = Plan(tuple(each for each in plan.remove if not each.endswith(UNFINISHED)), plan.rotate_to)
            if plan != NOTHING_TO_DO:
                self._begin(key, partial(self._carry_out, key, logs, plan, writer, group), group)

    def _pause(self, written: "dict[_Key, _Written]") -> float:
        now = self._clock.monotonic()
        seconds, self._looked_at = max(now - self._looked_at, 0.001), now
        before, self._written = self._written, written
        most = self._policy.max_bytes
        if most is None:
            return self._policy.interval_seconds
        if before is None:  # the first look tells no pace: the second comes soon
            return min(SHORTEST_PAUSE_SECONDS, self._policy.interval_seconds)
        growing = []
        for key, seen in written.items():
            then = before.get(key)
            grown = seen.size - (0 if then is None or then.begins_anew else then.size)
            growing.append((most if seen.begins_anew else most - seen.size, grown / seconds))
        return pause_seconds(growing, self._policy)

    # What is done.

    def _begin(self, key: _Key, do: Callable[[], Coroutine[Any, Any, None]], group: asyncio.TaskGroup) -> None:
        """Do one thing at a time to a log; what is left out is found again."""
        if key not in self._at_work:
            self._at_work.add(key)
            group.create_task(self._isolated(key, do, self._at_work))

    async def _isolated(self, key: _Key, do: Callable[[], Coroutine[Any, Any, None]], at_work: set[_Key]) -> None:
        """Do something to a log: its failure is its own."""
        try:
            await do()
            self._told.pop(key, None)
        except TryLater as error:
            self._tell_once(key, error)
        except Exception:
            log.exception("caring for the log %s failed in an unforeseen way", "/".join(key))
        finally:
            at_work.discard(key)

    async def _carry_out(
        self, key: _Key, logs: ContainerLogs, plan: Plan, writer: ContainerRecord | None, group: asyncio.TaskGroup
    ) -> None:
        if plan.remove:
            await self._files.remove(logs, plan.remove)
        if plan.rotate_to and writer is not None:
            await self._rotate(logs, key[-1], plan.rotate_to, writer)
        if plan.compress:
            self._compressing.add(key)
            group.create_task(self._isolated(key, partial(self._compress, logs, plan.compress), self._compressing))

    async def _rotate(self, logs: ContainerLogs, name: str, to: str, writer: ContainerRecord) -> None:
        await self._files.move(logs, name, to)
        try:
            await self._reopen(writer)
        except Exception:  # whatever the reason, the container must not go on without a log until the next look
            await self._files.move_back(logs, name, to)
            raise
        log.debug("rotated the log of container %s in %s", logs.container, logs.pod)

    async def _reopen(self, container: ContainerRecord) -> None:
        try:
            async with asyncio.timeout(REOPEN_SECONDS):
                await self._runtime.reopen_log(container.id)
        except TimeoutError as error:
            text = f"cannot reopen the log of container {container.name}: no answer within {REOPEN_SECONDS:g} s"
            raise TryLater(text) from error

    async def _compress(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        async with self._workers:
            for name in names:
                await self._files.compress(logs, name)

    def _tell_once(self, about: object, error: TryLater) -> None:
        if self._told.get(about) != str(error):
            log.warning("logs are not cared for as they should be, will retry: %s", error)
        self._told[about] = str(error)
