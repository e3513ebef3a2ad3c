"""Stopping containers, with an event at every await and a failure of every runtime call."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.plan import ContainerToKill
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.runtimes.fake import Operation as RuntimeOperation
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import AT_ONCE, PortCalls
from tests.engine.execution_harness import UID, ExecutionHarness, container, running_harness

GRACE, SHORT = 30, 3
AT_LEAST = 2  # the minimum of seconds that every container gets
WEB = pod("web", container("web", pre_stop=exec_hook("bye")), init=(container("mesh", sidecar=True),), grace=GRACE)
ALONE = pod("web", container("web", pre_stop=exec_hook("bye")), grace=GRACE)
SLOW_HOOK = ExecStep(takes_seconds=10)
IGNORES_TERM = Behaviour(term_seconds=None, exec=(SLOW_HOOK,))


@dataclass
class Setup:
    harness: ExecutionHarness
    pod: Pod
    record: PodRecord  # of the pod while it ran

    async def kill(self, grace: int = GRACE) -> None:
        """Kill the pod in a sync. It takes at most the grace period, even if an earlier sync waits longer."""
        began = self.harness.clock.monotonic()
        errors = await self.harness.stopper.kill_pod(self.pod, await self.harness.inspect(), grace)
        assert self.harness.clock.monotonic() - began <= grace + AT_LEAST + AT_LEAST  # the app's, then the sidecar's
        if errors:
            raise ExceptionGroup("cannot kill", errors)
        assert not self.running()
        assert not any(sandbox.ready for sandbox in (await self.harness.inspect()).sandboxes)

    async def kill_one(self) -> None:
        """Run a sync that kills one container, for example after its liveness probe failed."""
        record = await self.harness.inspect()
        for found in record.containers:
            if (found.name, found.state) == ("web", RecordState.RUNNING):
                kill = ContainerToKill(found.id, "web", "killing", KillReason.LIVENESS_PROBE)
                errors = await self.harness.stopper.kill_containers(self.pod, record, (kill,))
                if errors:
                    raise ExceptionGroup("cannot kill", errors)
        assert "web" not in self.running()

    def running(self) -> set[str]:
        return {record.name for _, record in self.harness.fake.live_containers()}

    def holds(self) -> None:
        assert len(self.harness.changes(RuntimeOperation.EXEC_SYNC)) <= 1, "the hook ran twice"
        assert len(self.harness.events("Killing")) <= len(self.record.containers)

    async def nothing_is_stored(self) -> None:
        """Check that another kill of the same containers has the full grace period and runs the hook."""
        self.harness.recorded.clear()
        await self.harness.stopper.kill_pod(self.pod, self.record, None)
        assert len(self.harness.events("Killing")) == len(self.record.containers)
        assert GRACE in [grace for _, _, grace in self.harness.stops()[-2:]]

    async def nothing_is_stored_of_a_forgotten_pod(self) -> None:
        self.harness.stopper.forget(UID)
        await self.nothing_is_stored()


def setup_of(of: Pod, behaviour: Behaviour) -> Callable[[PortCalls], AbstractAsyncContextManager[Setup]]:
    @asynccontextmanager
    async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
        async with running_harness(calls=calls) as harness:
            harness.fake.behave("web", "*", behaviour)
            AT_ONCE.set(True)
            await harness.sync(of)
            await harness.sync(of)
            AT_ONCE.set(False)
            harness.recorded.clear()
            yield Setup(harness, of, await harness.inspect())

    return setup


EXITS: dict[str, Event[Setup]] = {
    "the app exits": lambda setup: setup.harness.fake.end_container(UID, "web", 1),
    "the sandbox dies": lambda setup: setup.harness.fake.kill_sandbox(UID),
}
KILLS: dict[str, Event[Setup]] = {
    "a kill with a short grace": lambda setup: setup.kill(SHORT),
    "one container is killed": Setup.kill_one,
}


def test_every_event_while_a_pod_is_killed() -> None:
    operation = OperationTest(setup=setup_of(WEB, IGNORES_TERM), run=Setup.kill, state=Setup.running, check=Setup.holds)
    interleave(operation, EXITS | KILLS, cancel=False)


def test_a_kill_of_the_pod_while_one_container_is_killed() -> None:
    operation = OperationTest(
        setup=setup_of(WEB, IGNORES_TERM), run=Setup.kill_one, state=Setup.running, check=Setup.holds
    )
    interleave(operation, {"a kill with a short grace": lambda setup: setup.kill(SHORT)}, cancel=False)


def test_a_cancelled_kill_changes_nothing_for_the_containers() -> None:
    """The hook takes 10 s, the app its whole grace period, and the sidecar stops last."""

    def the_sidecar_is_stopped_last(setup: Setup) -> None:
        setup.holds()
        assert setup.harness.stops() == [("web", 10, GRACE - 10), ("mesh", GRACE, AT_LEAST)]
        assert [call.error for call in setup.harness.fake.call_log if call.error] == []

    kill = OperationTest(
        setup=setup_of(WEB, IGNORES_TERM),
        run=Setup.kill,
        state=Setup.running,
        check=the_sidecar_is_stopped_last,
        afterwards=Setup.nothing_is_stored,
    )
    interleave(kill, {})


@pytest.mark.parametrize("of", [WEB, ALONE])
@pytest.mark.parametrize("run", [Setup.kill, Setup.kill_one])
def test_every_call_fails_once(run: Callable[[Setup], Awaitable[None]], of: Pod) -> None:
    operation = OperationTest(
        setup=setup_of(of, Behaviour()),
        run=run,
        state=Setup.running,
        check=Setup.holds,
        afterwards=Setup.nothing_is_stored_of_a_forgotten_pod,
    )
    fail_each_call(operation)
