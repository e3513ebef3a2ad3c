"""Stopping containers, with an event at every await and a failure of every runtime call."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.plan import ContainerToKill
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.runtimes.fake import Operation as RuntimeOperation
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import AT_ONCE, PortCalls
from tests.engine.execution_house import UID, House, command, container, house, pod

GRACE, SHORT = 30, 3
AT_LEAST = 2  # seconds that every container has, however short the grace
WEB = pod(container("web", pre_stop=command("bye")), init=(container("mesh", sidecar=True),), grace=GRACE)
ALONE = pod(container("web", pre_stop=command("bye")), grace=GRACE)
SLOW_HOOK = ExecStep(takes_seconds=10)
STUBBORN = Behaviour(term_seconds=None, exec=(SLOW_HOOK,))


@dataclass
class Stage:
    home: House
    pod: Pod
    record: PodRecord  # of the pod while it ran

    async def kill(self, grace: int = GRACE) -> None:
        """A sync that kills the pod within the grace, whatever an earlier one waits for. Raises what failed."""
        began = self.home.clock.monotonic()
        errors = await self.home.stopper.kill_pod(self.pod, await self.home.look(), grace)
        assert self.home.clock.monotonic() - began <= grace + AT_LEAST + AT_LEAST  # the app's, then the sidecar's
        if errors:
            raise ExceptionGroup("cannot kill", errors)
        assert not self.running()
        assert not any(sandbox.ready for sandbox in (await self.home.look()).sandboxes)

    async def kill_one(self) -> None:
        """A sync that restarts one container, for example after its liveness probe failed."""
        record = await self.home.look()
        for found in record.containers:
            if (found.name, found.state) == ("web", ContainerState.RUNNING):
                kill = ContainerToKill(found.id, "web", "killing", KillReason.LIVENESS_PROBE)
                errors = await self.home.stopper.kill_containers(self.pod, record, (kill,))
                if errors:
                    raise ExceptionGroup("cannot kill", errors)
        assert "web" not in self.running()

    def running(self) -> set[str]:
        return {record.name for _, record in self.home.fake.live_containers()}

    def holds(self) -> None:
        assert len(self.home.changes(RuntimeOperation.EXEC_SYNC)) <= 1, "the hook ran twice"
        assert len(self.home.events("Killing")) <= len(self.record.containers)

    async def nothing_is_remembered(self) -> None:
        """A kill of the same containers has its full grace, and its hook, again."""
        self.home.told.clear()
        await self.home.stopper.kill_pod(self.pod, self.record, None)
        assert len(self.home.events("Killing")) == len(self.record.containers)
        assert GRACE in [grace for _, _, grace in self.home.stops()[-2:]]

    async def nothing_is_remembered_of_a_forgotten_pod(self) -> None:
        self.home.stopper.forget(UID)
        await self.nothing_is_remembered()


def stage_of(of: Pod, behaviour: Behaviour) -> Callable[[PortCalls], AbstractAsyncContextManager[Stage]]:
    @asynccontextmanager
    async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
        async with house(calls=calls) as home:
            home.fake.behave("web", "*", behaviour)
            AT_ONCE.set(True)
            await home.sync(of)
            await home.sync(of)
            AT_ONCE.set(False)
            home.told.clear()
            yield Stage(home, of, await home.look())

    return stage


ACCIDENTS: dict[str, Event[Stage]] = {
    "the app exits": lambda stage: stage.home.fake.end_container(UID, "web", 1),
    "the sandbox dies": lambda stage: stage.home.fake.kill_sandbox(UID),
}
KILLS: dict[str, Event[Stage]] = {
    "a kill with a short grace": lambda stage: stage.kill(SHORT),
    "one container is killed": Stage.kill_one,
}


def test_every_event_while_a_pod_is_killed() -> None:
    operation = Operation(stage=stage_of(WEB, STUBBORN), run=Stage.kill, state=Stage.running, check=Stage.holds)
    interleave(operation, ACCIDENTS | KILLS, cancel=False)


def test_a_kill_of_the_pod_while_one_container_is_killed() -> None:
    operation = Operation(stage=stage_of(WEB, STUBBORN), run=Stage.kill_one, state=Stage.running, check=Stage.holds)
    interleave(operation, {"a kill with a short grace": lambda stage: stage.kill(SHORT)}, cancel=False)


def test_a_cancelled_kill_changes_nothing_for_the_containers() -> None:
    """Each step takes its time: the hook for 10 s, the app until its grace is over, then the sidecar."""

    def the_sidecar_is_stopped_last(stage: Stage) -> None:
        stage.holds()
        assert stage.home.stops() == [("web", 10, GRACE - 10), ("mesh", GRACE, AT_LEAST)]
        assert [call.error for call in stage.home.fake.ledger if call.error] == []

    kill = Operation(
        stage=stage_of(WEB, STUBBORN),
        run=Stage.kill,
        state=Stage.running,
        check=the_sidecar_is_stopped_last,
        afterwards=Stage.nothing_is_remembered,
    )
    interleave(kill, {})


@pytest.mark.parametrize("of", [WEB, ALONE])
@pytest.mark.parametrize("run", [Stage.kill, Stage.kill_one])
def test_every_call_fails_once(run: Callable[[Stage], Awaitable[None]], of: Pod) -> None:
    operation = Operation(
        stage=stage_of(of, Behaviour()),
        run=run,
        state=Stage.running,
        check=Stage.holds,
        afterwards=Stage.nothing_is_remembered_of_a_forgotten_pod,
    )
    fail_each_call(operation)
