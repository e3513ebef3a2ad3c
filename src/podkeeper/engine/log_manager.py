"""Log manager: rotate large logs, remove the logs of removed containers.

    list the log tree -> list the pods of the runtime -> plan, without an await -> remove, rotate, compress

Runs once per interval, and earlier if a log will reach its limit before. `rules.logs.rotation` plans the files of a
container. The log of a removed container is deleted. The directory of a pod is deleted when all sources are ready and
neither a source, a worker nor the runtime has the pod.

A full log is rotated at once: the file is renamed, and the runtime reopens the log. If that fails, the file gets its
name back, so the container does not lose its log. Only compressions wait for each other. All state is in the log
tree, so a new agent continues after a crash at any point.

Kubelet counterpart: pkg/kubelet/logs/container_log_manager.go, and `evictPodLogsDirectories` in
pkg/kubelet/kuberuntime/kuberuntime_gc.go.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from podkeeper.concurrency.once import LogOnce
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.ports.clock import Clock
from podkeeper.ports.logs import LogFiles
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.logs.rotation import (
    MIN_INTERVAL_SECONDS,
    NOTHING_TO_DO,
    UNFINISHED,
    RotationPlan,
    RotationPolicy,
    attempt_of,
    rotation_plan,
    seconds_until_next_check,
    stale_files,
)
from podkeeper.rules.naming import container_log_name, log_directory_name, uid_of_log_directory

log = logging.getLogger(__name__)

REOPEN_SECONDS: Final = 10.0


_LogKey = tuple[str, str, str]
"""A log: directory of the pod, container, file name."""


@dataclass(frozen=True, slots=True)
class _ActiveLog:
    """A log that a running container writes to."""

    size: int
    rotating: bool


class ContainerLogManager:
    def __init__(
        self,
        *,
        runtime: Runtime,
        files: LogFiles,
        clock: Clock,
        policy: RotationPolicy,
        is_removed: Callable[[PodUID], bool],
    ) -> None:
        """`is_removed` returns whether no source and no worker has a pod, and all sources are ready."""
        self._runtime = runtime
        self._files = files
        self._clock = clock
        self._policy = policy
        self._policy_without_writer = replace(policy, max_bytes=None)  # a log without a writer is not rotated
        self._is_removed = is_removed
        self._workers = asyncio.Semaphore(policy.workers)
        self._busy: set[_LogKey] = set()
        self._compressing: set[_LogKey] = set()
        self._active: dict[_LogKey, _ActiveLog] | None = None  # as of the last run
        self._last_run = clock.monotonic()
        self._problems: LogOnce[object] = LogOnce(log)

    async def run(self) -> None:
        """Rotate and remove logs until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                pause = self._policy.interval_seconds
                try:
                    pause = await self.rotate_logs(group)
                    self._problems.solved("run")
                except TryLater as error:
                    self._problems.problem("run", "log rotation failed, will retry: %s", error)
                except Exception:
                    log.exception("unexpected error in log rotation, will retry in %g s", pause)
                await asyncio.sleep(pause)

    async def rotate_logs(self, group: asyncio.TaskGroup) -> float:
        """Inspect all logs once and begin the work in the group. Return the seconds until the next run."""
        # List the tree before the runtime: a pod in the tree that the runtime does not list is removed, not new.
        tree = await self._files.list_logs()
        records = await self._runtime.list_pods()
        # No await from here on, so the plan still holds when the work begins.
        self._remove_pods(tree, records, group)
        by_directory = {log_directory_name(each.namespace, each.name, each.uid): each for each in records}
        self._reopen_missing(tree, by_directory, group)
        active: dict[_LogKey, _ActiveLog] = {}
        for logs in tree.logs:
            if (record := by_directory.get(logs.pod)) is not None:
                containers = [each for each in record.containers if each.name == logs.container]
                self._plan_container(logs, containers, active, group)
        return self._pause(active)

    # Plan.

    def _remove_pods(self, tree: LogTree, records: Iterable[PodRecord], group: asyncio.TaskGroup) -> None:
        known = {each.uid for each in records}
        gone = [
            pod for pod in tree.pods if (uid := uid_of_log_directory(pod)) not in known and self._is_removable(pod, uid)
        ]
        for pod in gone:
            try:
                # Rename at once, without an await: a static pod that is added again has the same UID and therefore the
                # same directory.
                self._files.put_aside(pod)
            except TryLater as error:
                self._problems.problem(pod, "cannot remove the logs of a pod, will retry: %s", error)
            else:
                log.info("removing logs of pod %s: the pod is gone", pod)
        if gone or tree.has_leftovers:
            self._begin(("", "", ""), self._files.clear, group)

    def _is_removable(self, directory: str, uid: str) -> bool:
        """Return whether a directory belongs to a removed pod. Directories of other programs stay."""
        return directory.count("_") == 2 and bool(uid) and self._is_removed(PodUID(uid))

    def _reopen_missing(self, tree: LogTree, records: Mapping[str, PodRecord], group: asyncio.TaskGroup) -> None:
        """Reopen the log of each running container without one. A crash during a rotation leaves such containers."""
        existing = {(logs.pod, logs.container): logs for logs in tree.logs}
        for pod, record in records.items():
            for container in record.containers:
                if container.state is not RecordState.RUNNING:
                    continue
                logs = existing.get((pod, container.name)) or ContainerLogs(pod, container.name, {})
                name = container_log_name(container.restart_count)
                if name not in logs.sizes and not self._files.exists(logs, name):
                    self._begin((pod, container.name, name), partial(self._reopen, container), group)

    def _plan_container(
        self,
        logs: ContainerLogs,
        containers: Sequence[ContainerRecord],
        active: "dict[_LogKey, _ActiveLog]",
        group: asyncio.TaskGroup,
    ) -> None:
        """Begin the work on the logs of all attempts of a container. Add those with a writer to `active`."""
        writers = {each.restart_count: each for each in containers if each.state is RecordState.RUNNING}
        old = stale_files(logs.sizes, {each.restart_count for each in containers})
        if old:
            self._begin((logs.pod, logs.container, ""), partial(self._files.remove, logs, old), group)
        names = logs.sizes.keys() - set(old)
        for attempt in sorted({attempt for name in names if (attempt := attempt_of(name)) is not None}):
            name, writer = container_log_name(attempt), writers.get(attempt)
            key, size = (logs.pod, logs.container, name), logs.sizes.get(name, 0)
            policy = self._policy if writer is not None else self._policy_without_writer
            plan = rotation_plan(name, size, names, policy, self._clock.now())
            if writer is not None:
                active[key] = _ActiveLog(size, rotating=bool(plan.rotate_to))
            # The unfinished file belongs to a compression in progress, so it is not a leftover of a crash.
            if key in self._compressing:
                plan = RotationPlan(
                    tuple(each for each in plan.remove if not each.endswith(UNFINISHED)), plan.rotate_to
                )
            if plan != NOTHING_TO_DO:
                self._begin(key, partial(self._carry_out, key, logs, plan, writer, group), group)

    def _pause(self, active: "dict[_LogKey, _ActiveLog]") -> float:
        now = self._clock.monotonic()
        seconds, self._last_run = max(now - self._last_run, 0.001), now
        before, self._active = self._active, active
        most = self._policy.max_bytes
        if most is None:
            return self._policy.interval_seconds
        if before is None:  # one run does not show how fast a log grows, so the second comes soon
            return min(MIN_INTERVAL_SECONDS, self._policy.interval_seconds)
        growing = []
        for key, seen in active.items():
            then = before.get(key)
            grown = seen.size - (0 if then is None or then.rotating else then.size)
            growing.append((most if seen.rotating else most - seen.size, grown / seconds))
        return seconds_until_next_check(growing, self._policy)

    # Work.

    def _begin(self, key: _LogKey, do: Callable[[], Coroutine[Any, Any, None]], group: asyncio.TaskGroup) -> None:
        """Begin a step unless one is in progress for this log. The next run finds a skipped step again."""
        if key not in self._busy:
            self._busy.add(key)
            group.create_task(self._isolated(key, do, self._busy))

    async def _isolated(self, key: _LogKey, do: Callable[[], Coroutine[Any, Any, None]], busy: set[_LogKey]) -> None:
        """Run a step on a log. An error must not affect other logs."""
        try:
            await do()
            self._problems.solved(key)
        except TryLater as error:
            self._problems.problem(key, "log rotation failed, will retry: %s", error)
        except Exception:
            log.exception("unexpected error in the rotation of log %s", "/".join(key))
        finally:
            busy.discard(key)

    async def _carry_out(
        self,
        key: _LogKey,
        logs: ContainerLogs,
        plan: RotationPlan,
        writer: ContainerRecord | None,
        group: asyncio.TaskGroup,
    ) -> None:
        if plan.remove:
            await self._files.remove(logs, plan.remove)
        if plan.rotate_to and writer is not None:
            await self._rotate(logs, key[-1], plan.rotate_to, writer)
        if plan.compress:
            # In a task of its own: the next rotation of this log must not wait for the compression. In the kubelet, one
            # slow log delays the others.
            self._compressing.add(key)
            group.create_task(self._isolated(key, partial(self._compress, logs, plan.compress), self._compressing))

    async def _rotate(self, logs: ContainerLogs, name: str, to: str, writer: ContainerRecord) -> None:
        # Rename before the reopen, because the runtime creates the file of the log again only when it reopens it.
        await self._files.move(logs, name, to)
        try:
            await self._reopen(writer)
        except Exception:  # after any error, the container must not stay without a log until the next run
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
