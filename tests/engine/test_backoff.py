"""Backoff across restarts of the agent."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.k8s.core import Container
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.backoff.table import DEFAULT_CURVE, BackoffTable, Curve
from podkeeper.testing import build
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import VirtualClock, simulate

UID = PodUID("u1")
POD = build.pod("web", namespace="prod", uid=UID)
APP = Container(name="app", image="app:v1")
IMAGE = "app:v1"


class CountingJournal(FakeJournal):
    writes = 0

    def put(self, key: str, value: bytes) -> None:
        self.writes += 1
        super().put(key, value)


class BackoffHarness:
    """A journal and a runtime record that survive restarts, and the backoff of the running agent."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.journal = CountingJournal()
        self.record = PodRecord(uid=UID)
        self.exits = 0
        self.restart()

    def restart(self, *, lose_unsynced: bool = False) -> None:
        if lose_unsynced:
            self.journal.crash()
        self.backoff = DurableBackoff(
            table=BackoffTable(), clock=self.clock, checkpoints=Checkpoints(self.journal, "restart-backoff/")
        )

    def container_exits(self) -> None:
        self.exits += 1
        ended = ContainerRecord(id=f"c{self.exits}", name="app", state=RecordState.EXITED, finished_at=self.clock.now())
        self.record = PodRecord(uid=UID, containers=(ended,))

    def wait_seconds(self) -> float:
        """Request to start the container. Return how long it has to wait."""
        held = self.backoff.begin_restart(POD, APP, self.record, DEFAULT_CURVE)
        return 0.0 if held is None else (held.until - self.clock.now()).total_seconds()

    def pull_wait_seconds(self) -> float:
        held = self.backoff.hold_pull(POD, IMAGE, DEFAULT_CURVE)
        return 0.0 if held is None else (held.until - self.clock.now()).total_seconds()

    async def crash_loop(self, times: int) -> None:
        """Let the container exit and start `times` times. It runs for one second each time."""
        for _ in range(times):
            self.container_exits()
            while wait := self.wait_seconds():
                await asyncio.sleep(wait)
            await self.backoff.settle(UID)
            await asyncio.sleep(1)


def on_node(scenario: Callable[[BackoffHarness], Awaitable[None]]) -> BackoffHarness:
    async def run() -> BackoffHarness:
        node = BackoffHarness()
        await scenario(node)
        return node

    return simulate(run())[0]


def test_a_crash_loop_continues_its_backoff_after_a_restart() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(3)
        node.container_exits()
        assert node.wait_seconds() == 40
        await asyncio.sleep(15)
        node.restart()
        assert round(node.wait_seconds(), 3) == 25
        await asyncio.sleep(25)
        assert node.wait_seconds() == 0
        node.container_exits()
        assert node.wait_seconds() == 80

    on_node(scenario)


def test_the_backoff_of_an_exit_while_the_agent_is_down_starts_at_the_exit() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(3)
        node.container_exits()
        await asyncio.sleep(12)
        node.restart()
        assert round(node.wait_seconds(), 3) == 28

    on_node(scenario)


def test_a_settled_backoff_survives_a_crash() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(2)
        node.container_exits()
        assert node.wait_seconds() == 20  # the checkpoint of the exit is written, and lost by the crash
        node.restart(lose_unsynced=True)
        assert node.wait_seconds() == 20

    on_node(scenario)


def test_the_backoff_of_a_failed_pull_survives_a_restart() -> None:
    async def scenario(node: BackoffHarness) -> None:
        for _ in range(2):
            node.backoff.pull_failed(POD, IMAGE, "ErrImagePull: no", DEFAULT_CURVE)
        await asyncio.sleep(5)
        node.restart()
        assert round(node.pull_wait_seconds(), 3) == 15
        held = node.backoff.hold_pull(POD, IMAGE, DEFAULT_CURVE)
        assert held is not None
        assert held.message == 'Back-off pulling image "app:v1": ErrImagePull: no'
        await asyncio.sleep(15)
        assert node.pull_wait_seconds() == 0

    on_node(scenario)


def test_a_wall_clock_jump_while_the_agent_is_down_changes_no_backoff() -> None:
    for jump in (7200, -7200):

        async def scenario(node: BackoffHarness, jump: float = jump) -> None:
            await node.crash_loop(3)
            node.container_exits()
            assert node.wait_seconds() == 40
            await asyncio.sleep(10)
            node.clock.jump(jump)
            node.restart()
            assert round(node.wait_seconds(), 3) == 30

        on_node(scenario)


def test_waiting_writes_nothing_and_a_container_restart_writes_at_most_twice() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(3)
        before = node.journal.writes
        node.container_exits()
        for _ in range(30):
            assert node.wait_seconds() > 0
            node.backoff.collect(lambda uid: False)
            await asyncio.sleep(1)
        assert node.journal.writes - before == 1
        await asyncio.sleep(10)
        assert node.wait_seconds() == 0
        assert node.journal.writes - before == 2

    on_node(scenario)


def test_the_checkpoint_is_dropped_with_its_pod() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(3)
        node.restart()
        node.backoff.collect(lambda uid: False)
        assert list(node.journal.load()) == ["restart-backoff/u1"]
        node.backoff.collect(lambda uid: uid == UID)
        assert node.journal.load() == {}

    on_node(scenario)


def test_a_checkpoint_is_dropped_when_its_entries_have_expired() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(3)
        await asyncio.sleep(650)
        node.restart()
        node.backoff.collect(lambda uid: False)
        assert node.journal.load() == {}
        node.container_exits()
        assert node.wait_seconds() == 0

    on_node(scenario)


def test_a_checkpoint_that_cannot_be_decoded_means_no_backoff() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(3)
        node.journal.put("restart-backoff/u1", b"\x00{invalid")
        node.restart()
        assert node.journal.load() == {}
        node.container_exits()
        assert node.wait_seconds() == 0
        node.restart()
        node.container_exits()
        assert node.wait_seconds() == 10

    on_node(scenario)


def test_the_end_of_a_backoff_is_in_current_wall_time() -> None:
    async def scenario(node: BackoffHarness) -> None:
        await node.crash_loop(2)
        node.backoff.pull_failed(POD, IMAGE, "ErrImagePull: no", DEFAULT_CURVE)
        node.container_exits()
        assert node.wait_seconds() == 20
        node.clock.jump(3600)
        await asyncio.sleep(4)
        held = node.backoff.begin_restart(POD, APP, node.record, DEFAULT_CURVE)
        pull = node.backoff.hold_pull(POD, IMAGE, DEFAULT_CURVE)
        assert held is not None
        assert pull is not None
        assert [each.until - node.clock.now() for each in (held, pull)] == [timedelta(seconds=16), timedelta(seconds=6)]
        assert (held.reason, pull.reason) == ("CrashLoopBackOff", "ImagePullBackOff")
        assert held.message == "back-off 20s restarting failed container=app pod=web_prod(u1)"

    on_node(scenario)


def test_the_curve_of_the_caller_is_used() -> None:
    async def scenario(node: BackoffHarness) -> None:
        slow = Curve(initial=timedelta(seconds=100))
        node.backoff.pull_failed(POD, IMAGE, "ErrImagePull: no", slow)
        held = node.backoff.hold_pull(POD, IMAGE, slow)
        assert held is not None
        assert held.until - node.clock.now() == timedelta(seconds=100)
        node.container_exits()
        assert node.backoff.begin_restart(POD, APP, node.record, slow) is None
        node.container_exits()
        wait = node.backoff.begin_restart(POD, APP, node.record, slow)
        assert wait is not None
        assert wait.until - node.clock.now() == timedelta(seconds=100)

    on_node(scenario)


def test_settling_waits_for_the_checkpoint_of_this_pod() -> None:
    async def scenario(node: BackoffHarness) -> None:
        node.journal.sync_seconds = 0.5
        node.container_exits()
        assert node.wait_seconds() == 0
        await node.backoff.settle(PodUID("other"))
        assert node.clock.monotonic() == 0
        await node.backoff.settle(UID)
        assert node.clock.monotonic() == 0.5

    on_node(scenario)


def test_a_restart_keeps_the_checkpoints_of_all_pods() -> None:
    async def scenario(node: BackoffHarness) -> None:
        other = build.pod("db", namespace="prod", uid="u2")
        for each in (POD, other):
            node.backoff.pull_failed(each, IMAGE, "ErrImagePull: no", DEFAULT_CURVE)
        node.restart()
        held = [node.backoff.hold_pull(each, IMAGE, DEFAULT_CURVE) for each in (POD, other)]
        assert [each is not None and each.until - node.clock.now() for each in held] == [timedelta(seconds=10)] * 2
        node.backoff.collect(lambda uid: uid == UID)
        assert list(node.journal.load()) == ["restart-backoff/u2"]

    on_node(scenario)
