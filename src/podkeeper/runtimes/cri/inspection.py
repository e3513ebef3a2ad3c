"""Inspect pods: the runtime's lists and statuses.

Lists and statuses are requested concurrently. A status is cached while it cannot change.

    list_pods:  two lists                                          -> all pods, with IDs and states
    pod_record: two lists of one pod -> statuses, concurrently     -> the whole record of one pod

Cached: the status of a container while it runs, or some time after its exit, and the network of a ready sandbox.
Objects removed between a list and a status are skipped. For containers that the runtime reports as UNKNOWN, the exit
status is recovered. Termination messages are read from files of the node, in a thread.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from podkeeper.linux.termination import termination_message
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.owners import Kind, OwnerIndex
from podkeeper.runtimes.cri.records import (
    container_record,
    containers_by_age,
    listed_pods,
    listed_sandbox,
    listed_state,
    may_use_log,
    pod_record,
    sandbox_record,
    sandboxes_by_age,
    termination_log_of,
)
from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound
from podkeeper.runtimes.cri.unknown_exits import recover_exit_status

T = TypeVar("T")

# containerd reports an OOM kill separately, possibly after the exit.
SETTLED_AFTER: Final = timedelta(seconds=5)
"""Time after an exit in which a container's status may still change."""


class PodInspector:
    def __init__(self, calls: CriCalls, index: OwnerIndex, clock: Clock) -> None:
        self._calls = calls
        self._index = index
        self._clock = clock
        self._settled: dict[str, ContainerRecord] = {}  # records that stay valid until a list shows another state
        self._networks: dict[str, SandboxRecord] = {}
        self._begun: dict[str, float] = {}  # by pod: start of the last inspection

    async def list_pods(self) -> Sequence[PodRecord]:
        sandboxes, containers = await asyncio.gather(self._calls.sandboxes(), self._calls.containers())
        self._learn(sandboxes, containers)
        pods = listed_pods(sandboxes, containers)
        _keep_only(self._networks, {box.id for box in sandboxes})
        _keep_only(self._settled, {container.id for container in containers})
        _keep_only(self._begun, {pod.uid for pod in pods})
        return pods

    async def pod_record(self, uid: PodUID) -> PodRecord:
        # Before the lists: `inspected_since` must not count an inspection that began before the change.
        self._begun[uid] = asyncio.get_running_loop().time()
        sandboxes, containers = await asyncio.gather(self._calls.sandboxes(uid), self._calls.containers(uid))
        self._learn(sandboxes, containers)
        boxes = sandboxes_by_age(sandboxes)
        made = containers_by_age(containers)
        newest, seen = await asyncio.gather(self._newest(boxes), self._containers(made))
        # Only the network of the newest sandbox matters, so the older ones need no status call.
        return pod_record(
            uid,
            boxes[0].labels if boxes else made[0].labels if made else {},
            (*newest, *map(listed_sandbox, boxes[1:])),
            seen,
        )

    def inspected_since(self, uid: PodUID, moment: float) -> bool:
        """Return whether an inspection of a pod has started since then."""
        return self._begun.get(uid, moment) > moment

    def forget(self, object_id: str) -> None:
        """Drop the cached data of an ID that was removed or has changed."""
        self._settled.pop(object_id, None)
        self._networks.pop(object_id, None)

    async def _newest(self, boxes: Sequence[cri.PodSandbox]) -> tuple[SandboxRecord, ...]:
        """Return the newest sandbox of a pod with its network, if any."""
        if not boxes:
            return ()
        box = boxes[0]
        known = self._networks.get(box.id)
        # The network of a ready sandbox does not change.
        if known is not None and box.state == cri.SANDBOX_READY:
            return (known,)
        try:
            record = sandbox_record((await self._calls.sandbox_status(box.id)).status)
        except ObjectNotFound:
            return ()
        # A sandbox may get its address later. Then the next inspection requests the status again.
        if record.ready and (record.ip or record.network is NetworkMode.NODE):
            self._networks[box.id] = record
        return (record,)

    async def _containers(self, listed: Sequence[cri.Container]) -> list[ContainerRecord]:
        """Return the records of containers, without those that are removed."""
        if len(listed) == 1:  # the usual case, which needs no task
            seen = [await self._container(listed[0])]
        else:
            seen = await asyncio.gather(*map(self._container, listed))
        return [record for record in seen if record is not None]

    async def _container(self, listed: cri.Container) -> ContainerRecord | None:
        """Return the record of a container. None if it is removed."""
        known = self._settled.get(listed.id)
        if known is not None and known.state is listed_state(listed):
            return known
        try:
            status = await self._calls.container_status(listed.id)
            if status.state == cri.CONTAINER_UNKNOWN:
                status = await recover_exit_status(self._calls, status)
        except ObjectNotFound:
            return None
        if status.state != cri.CONTAINER_EXITED:
            record = container_record(status, listed.pod_sandbox_id)
            # A running container changes only to another state, which the list shows.
            if record.state is RecordState.RUNNING:
                self._settled[listed.id] = record
            return record
        record = container_record(status, listed.pod_sandbox_id, await _termination_message_of(status))
        if record.finished_at is not None and self._clock.now() - record.finished_at > SETTLED_AFTER:
            self._settled[listed.id] = record
        return record

    def _learn(self, sandboxes: Iterable[cri.PodSandbox], containers: Iterable[cri.Container]) -> None:
        for box in sandboxes:
            if uid := box.labels.get(POD_UID):
                self._index.saw(box.id, uid, Kind.SANDBOX)
        for container in containers:
            if uid := container.labels.get(POD_UID):
                self._index.saw(container.id, uid, Kind.CONTAINER)


def _keep_only(memory: dict[str, T], here: Collection[str]) -> None:
    for gone in memory.keys() - here:
        del memory[gone]


async def _termination_message_of(status: cri.ContainerStatus) -> str:
    path, use_log = termination_log_of(status), may_use_log(status)
    if not path and not use_log:
        return ""
    return await asyncio.to_thread(termination_message, path, status.log_path, fallback_to_logs=use_log)
