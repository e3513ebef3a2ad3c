"""Housekeeping, with an event at every await and a failure at every call."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from podkeeper.model.messages import Op, PodUID
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import simulate
from tests.engine.loop_harness import LoopHarness, never, pod, uids

ROUNDS_SECONDS = 7.0
"""Enough rounds to remove the volumes, then the directory, then the cgroup of a pod."""


@dataclass
class Harness:
    """A node with pod web, a running orphaned pod, and the leftovers of the removed pod `gone`."""

    node: LoopHarness
    came_at: dict[str, float] = field(default_factory=dict)

    def come(self, name: str) -> None:
        self.came_at[name] = asyncio.get_running_loop().time()
        self.node.send_update(Op.ADD, pod(name))

    def come_back(self) -> None:
        """Remove pod web and add it again with the same UID."""
        self.node.send_update(Op.REMOVE, pod("web"))
        self.node.send_update(Op.ADD, pod("web"))

    def hide_the_runtime(self) -> None:
        """Make a listing that begins within the next 5 s end after these 5 s."""
        loop, until = asyncio.get_running_loop(), asyncio.get_running_loop().time() + 5

        async def wait() -> None:
            await asyncio.sleep(max(0, until - loop.time()))

        self.node.runtime.before_listing = wait

    def what_is_left(self) -> object:
        """Return what runs and what exists. Exclude pods added again, because any part of them may be removed."""
        host, came = self.node.host, uids(*self.came_at)
        left = [each - came for each in (host.cgroups, host.dirs, host.mounts)]
        return sorted(self.node.runtime.running), left, set(self.node.mirrors.deleted)

    def is_sound(self) -> None:
        node = self.node
        desired = uids(*(each.metadata.uid or "" for each in node.pods.pods()))
        assert node.runtime.running == desired
        assert node.probes.kept == desired
        assert node.status.kept is not None
        assert node.status.kept >= desired
        assert not any(node.housekeeping.is_removing(PodUID(name)) for name in ("web", "gone", "orphan"))
        assert not node.syncer.did("kill orphan", "web"), (
            "a pod is killed as an orphan although its worker terminates it"
        )
        for name, came_at in self.came_at.items():
            assert len(node.syncer.did("sync", name)) == 1, "a new pod is started twice"
            removals = [call for at, call in node.host.begun if at > came_at and call.endswith(f" {name}")]
            assert not removals, "something of a desired pod is removed"
            killed = [at for at in node.syncer.did("kill orphan", name) if at > came_at]
            assert not killed, "a desired pod is killed as an orphan"

    async def the_next_orphan_is_taken_down(self) -> None:
        host = self.node.host
        host.cgroups |= uids("late")
        host.dirs |= uids("late")
        host.mounts |= uids("late")
        self.node.runtime.running.add("late")
        await asyncio.sleep(ROUNDS_SECONDS)
        assert "late" not in self.node.runtime.running | host.cgroups | host.dirs | host.mounts


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    harness = Harness(LoopHarness(calls=calls))
    host = harness.node.host
    async with harness.node.running():
        harness.node.send_update(Op.ADD, pod("web"), pod("dns", uid="mirror", mirror="hash"))
        await asyncio.sleep(2.5)
        harness.node.mirrors.deleted.clear()
        host.cgroups |= uids("gone", "web")
        host.dirs |= uids("gone", "web")
        host.mounts |= uids("gone", "web")
        harness.node.runtime.running.add("orphan")
        yield harness


async def run_round(harness: Harness) -> None:
    harness.node.housekeeping.request()
    await asyncio.sleep(0.1)


ROUND = OperationTest(
    setup=set_up,
    run=run_round,
    state=Harness.what_is_left,
    check=Harness.is_sound,
    afterwards=Harness.the_next_orphan_is_taken_down,
    settle_seconds=ROUNDS_SECONDS,
)
EVENTS: dict[str, Event[Harness]] = {
    "the running pod becomes desired": lambda harness: harness.come("orphan"),
    "pod gone is added again": lambda harness: harness.come("gone"),
    "a new pod comes": lambda harness: harness.come("young"),
    "pod web is removed": lambda harness: harness.node.send_update(Op.REMOVE, pod("web")),
    "pod web comes back": Harness.come_back,
    "the runtime hangs": Harness.hide_the_runtime,
}


def test_every_event_during_a_round() -> None:
    interleave(ROUND, EVENTS, cancel=False)  # the round belongs to `run`


def test_a_requested_round_follows_the_running_one_at_once() -> None:
    rounds: list[int] = []

    def count(harness: Harness) -> int:
        return harness.node.host.calls.count("list cgroups")

    def request(harness: Harness) -> None:
        rounds.append(count(harness))
        harness.node.housekeeping.request()

    def followed(harness: Harness) -> None:
        assert not rounds or count(harness) > rounds.pop()

    soon = OperationTest(setup=set_up, run=run_round, state=lambda _: None, check=followed, settle_seconds=0.5)
    interleave(soon, {"another round is due": request}, cancel=False)


def test_the_runtime_timeout_grows_until_the_first_answer() -> None:
    async def pauses(harness: Harness, count: int) -> list[float]:
        """Let the runtime hang. Return the time from one listing to the next."""
        begun: list[float] = []

        async def hang() -> None:
            begun.append(asyncio.get_running_loop().time())
            await never()

        harness.node.runtime.before_listing = hang
        while len(begun) <= count:
            await asyncio.sleep(1)
        harness.node.runtime.before_listing = None
        return [after - before for before, after in pairwise(begun)]

    async def scenario() -> None:
        async with set_up(PortCalls()) as harness:
            assert await pauses(harness, 3) == [2 + 2, 4 + 2, 8 + 2]  # the timeout, and the time between two rounds
            await asyncio.sleep(30)
            assert await pauses(harness, 1) == [2 + 2]

    simulate(scenario())


def test_every_call_fails_once() -> None:
    # Only removals have an effect that can outlive a lost answer, and a removal can be repeated.
    fail_each_call(dataclasses.replace(ROUND, afterwards=None), lost_answers=False)
