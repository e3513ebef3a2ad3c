"""What the fake runtime has: pods, their sandboxes and containers. The records are the state, shared and frozen.

A pod's whole record is built when somebody asks for it after a change, and kept: asking for 10,000 idle pods costs
next to nothing.
"""

import asyncio

from msgspec.structs import replace

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.runtimes.fake.behaviour import Behaviour


class FakeSandbox:
    """A sandbox and where it stands."""

    __slots__ = ("pod", "record")

    def __init__(self, pod: "FakePod", record: SandboxRecord) -> None:
        self.pod = pod
        self.record = record

    def stop(self) -> None:
        """Take away its network; what ran in it is its owner's care."""
        self.record = replace(self.record, ready=False, ip="")


class FakeContainer:
    """A container, where it stands, and what it will do."""

    __slots__ = ("_exit", "_timer", "asked_to_end", "behaviour", "pod", "record", "sandbox", "started")

    def __init__(self, sandbox: FakeSandbox, record: ContainerRecord, behaviour: Behaviour) -> None:
        self.sandbox = sandbox
        self.pod = sandbox.pod
        self.record = record
        self.behaviour = behaviour
        self.started = 0.0  # on the loop's clock
        self.asked_to_end = False
        self._timer: asyncio.TimerHandle | None = None
        self._exit: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.record.state is ContainerState.RUNNING

    def end_by(self, timer: asyncio.TimerHandle) -> None:
        """Let a timer end its life, unless an earlier one does."""
        if self._timer is not None and self._timer.when() <= timer.when():
            timer.cancel()
            return
        self.stop_timer()
        self._timer = timer

    def stop_timer(self) -> None:
        """Let no timer end its life."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def notify_exit(self) -> None:
        """Tell all who wait that it has exited."""
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(None)
        self._exit = None

    async def exit_within(self, seconds: float | None) -> bool:
        """Wait for its exit; whether it came in time. Without a limit it waits for ever."""
        if self.running:
            if self._exit is None:
                self._exit = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._exit}, timeout=seconds)
        return not self.running


class FakePod:
    """All there is of one pod."""

    __slots__ = ("containers", "name", "namespace", "record", "sandboxes", "uid")

    def __init__(self, uid: PodUID, name: str, namespace: str) -> None:
        self.uid = uid
        self.name = name
        self.namespace = namespace
        self.sandboxes: list[FakeSandbox] = []  # oldest first
        self.containers: list[FakeContainer] = []  # oldest first
        self.record: PodRecord | None = None  # None: changed since it was last built

    def current_record(self) -> PodRecord:
        """The pod as it is now; the same value as long as nothing changes."""
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
