"""Pods, sandboxes and containers of the fake runtime.

Their state is held in frozen records.

A pod's record is built at the first query after a change, and then kept. So queries of 10,000 idle pods cost almost
nothing.
"""

import asyncio

from msgspec.structs import replace

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.runtimes.fake.behaviour import Behaviour


class FakeSandbox:
    __slots__ = ("pod", "record")

    def __init__(self, pod: "FakePod", record: SandboxRecord) -> None:
        self.pod = pod
        self.record = record

    def stop(self) -> None:
        """Remove the network of the sandbox. The caller stops the containers."""
        self.record = replace(self.record, ready=False, ip="")


class FakeContainer:
    __slots__ = ("_exit", "_timer", "behaviour", "pod", "record", "sandbox", "started", "term_sent")

    def __init__(self, sandbox: FakeSandbox, record: ContainerRecord, behaviour: Behaviour) -> None:
        self.sandbox = sandbox
        self.pod = sandbox.pod
        self.record = record
        self.behaviour = behaviour
        self.started = 0.0  # on the loop's clock
        self.term_sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._exit: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return self.record.state is RecordState.RUNNING

    def end_by(self, timer: asyncio.TimerHandle) -> None:
        """Use a timer for its exit, unless an earlier timer is set."""
        if self._timer is not None and self._timer.when() <= timer.when():
            timer.cancel()
            return
        self.stop_timer()
        self._timer = timer

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def notify_exit(self) -> None:
        """Wake the callers of `exit_within`."""
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(None)
        self._exit = None

    async def exit_within(self, seconds: float | None) -> bool:
        """Wait for its exit. Return whether it has exited. None: no time limit."""
        if self.running:
            if self._exit is None:
                self._exit = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._exit}, timeout=seconds)
        return not self.running


class FakePod:
    __slots__ = ("containers", "name", "namespace", "record", "sandboxes", "uid")

    def __init__(self, uid: PodUID, name: str, namespace: str) -> None:
        self.uid = uid
        self.name = name
        self.namespace = namespace
        self.sandboxes: list[FakeSandbox] = []  # oldest first
        self.containers: list[FakeContainer] = []  # oldest first
        self.record: PodRecord | None = None  # None: changed since it was last built

    def current_record(self) -> PodRecord:
        """Return the pod's record: the same value until something changes."""
        if self.record is None:
            newest = self.sandboxes[-1].record if self.sandboxes else None
            self.record = PodRecord(
                uid=self.uid,
                name=self.name,
                namespace=self.namespace,
                ips=(newest.ip,) if newest is not None and newest.ready and newest.ip else (),
                sandboxes=tuple([sandbox.record for sandbox in reversed(self.sandboxes)]),
                containers=tuple([container.record for container in reversed(self.containers)]),
            )
        return self.record
