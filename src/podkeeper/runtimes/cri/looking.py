"""Seeing what there is: the runtime's lists and statuses, asked for together and remembered where they cannot change.

    list_pods:  two lists                                      -> every pod, ids and states
    pod_record: two lists of one pod -> statuses, all at once  -> all about it

What was remembered is not asked for again: the status of a container while it runs, or that exited a while ago, and the
network of a sandbox that is ready. (Right after an exit the status may still change: that it was for want of memory is
told separately.)
What is gone between a list and a status is left out; what the runtime lost track of, it is made to find out. Last words
are read from files of the node, in a thread.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, NetworkMode, PodRecord, SandboxRecord
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.forgotten import remembered
from podkeeper.runtimes.cri.index import Index, Kind
from podkeeper.runtimes.cri.records import (
    container_record,
    containers_by_age,
    listed_pods,
    listed_sandbox,
    listed_state,
    may_ask_log,
    pod_record,
    sandbox_record,
    sandboxes_by_age,
    termination_log_of,
)
from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import NotThere
from podkeeper.runtimes.process.keeper.termination import last_words

T = TypeVar("T")

SETTLED_AFTER: Final = timedelta(seconds=5)
"""How long after its end a container's status may still change."""


class Looking:
    """The runtime's pods, seen from here."""

    def __init__(self, calls: Calls, index: Index, clock: Clock) -> None:
        self._calls = calls
        self._index = index
        self._clock = clock
        self._settled: dict[str, ContainerRecord] = {}  # containers that can only change in a way that lists show
        self._networks: dict[str, SandboxRecord] = {}
        self._begun: dict[str, float] = {}  # by pod: when it was last looked at

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod the runtime has anything of."""
        sandboxes, containers = await asyncio.gather(self._calls.sandboxes(), self._calls.containers())
        self._learn(sandboxes, containers)
        pods = listed_pods(sandboxes, containers)
        _keep_only(self._networks, {box.id for box in sandboxes})
        _keep_only(self._settled, {container.id for container in containers})
        _keep_only(self._begun, {pod.uid for pod in pods})
        return pods

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""
        self._begun[uid] = asyncio.get_running_loop().time()
        sandboxes, containers = await asyncio.gather(self._calls.sandboxes(uid), self._calls.containers(uid))
        self._learn(sandboxes, containers)
        boxes = sandboxes_by_age(sandboxes)
        made = containers_by_age(containers)
        newest, seen = await asyncio.gather(self._newest(boxes), self._containers(made))
        # Only the newest one's network matters to anybody; the others are as the list tells.
        return pod_record(
            uid,
            boxes[0].labels if boxes else made[0].labels if made else {},
            (*newest, *map(listed_sandbox, boxes[1:])),
            seen,
        )

    def looked_since(self, uid: PodUID, moment: float) -> bool:
        """Whether somebody has looked at a pod since then, or is just looking."""
        return self._begun.get(uid, moment) > moment

    def forget(self, thing: str) -> None:
        """Ask anew about an id: it is gone, or news of it came."""
        self._settled.pop(thing, None)
        self._networks.pop(thing, None)

    async def _newest(self, boxes: Sequence[cri.PodSandbox]) -> tuple[SandboxRecord, ...]:
        """The newest sandbox of a pod, with its network, if there is one."""
        if not boxes:
            return ()
        box = boxes[0]
        known = self._networks.get(box.id)
        if known is not None and box.state == cri.SANDBOX_READY:
            return (known,)
        try:
            record = sandbox_record((await self._calls.sandbox_status(box.id)).status)
        except NotThere:
            return ()
        if record.ready and (record.ip or record.network is NetworkMode.NODE):
            self._networks[box.id] = record
        return (record,)

    async def _containers(self, listed: Sequence[cri.Container]) -> list[ContainerRecord]:
        """Containers with all about them, without those that are gone."""
        if len(listed) == 1:  # mostly; it needs no task of its own
            seen = [await self._container(listed[0])]
        else:
            seen = await asyncio.gather(*map(self._container, listed))
        return [record for record in seen if record is not None]

    async def _container(self, listed: cri.Container) -> ContainerRecord | None:
        """One container with all about it; None: it is gone."""
        known = self._settled.get(listed.id)
        if known is not None and known.state is listed_state(listed):
            return known
        try:
            status = await self._calls.container_status(listed.id)
            if status.state == cri.CONTAINER_UNKNOWN:
                status = await remembered(self._calls, status)
        except NotThere:
            return None
        if status.state != cri.CONTAINER_EXITED:
            record = container_record(status, listed.pod_sandbox_id)
            if record.state is ContainerState.RUNNING:
                self._settled[listed.id] = record
            return record
        record = container_record(status, listed.pod_sandbox_id, await _last_words_of(status))
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


async def _last_words_of(status: cri.ContainerStatus) -> str:
    """What a container left as its message."""
    path, ask_log = termination_log_of(status), may_ask_log(status)
    if not path and not ask_log:
        return ""
    return await asyncio.to_thread(last_words, path, status.log_path, ask_log=ask_log)
