"""Probe workers, with an event at every await and a failure of every execution."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.pods import uid_of
from podkeeper.testing.build import container, probe
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.probe_harness import FAILURE, HEALTHY, READINESS, SUCCESS, UNHEALTHY, ProbeHarness, pod

WEB = pod("web", container("web", readiness=probe(period=10, failures=1), liveness=probe(period=10, failures=1)))
DB = pod("db", container("db", readiness=probe(period=10, failures=1)))
EXECUTION_SECONDS = 0.3
PERIODS_SECONDS = 21.0
"""Long enough for two ticks of each worker: the first sees the change, the second finds nothing to do."""


class CheckingHarness(ProbeHarness):
    """A harness that checks each result at the moment when it is sent."""

    def __init__(self, *, slots: int, lease_seconds: float, calls: PortCalls) -> None:
        super().__init__(slots=slots, lease_seconds=lease_seconds, calls=calls)
        # An execution that outlives its lease runs together with the next one.
        self.limit = slots if lease_seconds > EXECUTION_SECONDS else 2 * slots
        self.wrong: list[str] = []

    def send(self, update: ProbeUpdate) -> None:
        super().send(update)
        view = self.probes.view(update.uid)
        if update.kind is READINESS and view.readiness.get(update.container_id) is not update.result:
            self.wrong.append(f"{update} is not what the view shows")
        (found,) = self.statuses[update.uid].container_statuses or (None,)
        if found is None or found.container_id != update.container_id:
            self.wrong.append(f"{update} is about a container that is gone")
        elif found.state.running is None and update.result is SUCCESS:
            self.wrong.append(f"{update} is about a container that has exited")

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        super().probed(pod, container, kind, result, seconds)
        if (container, kind) not in self.probes.view(uid_of(pod)).workers:
            self.wrong.append(f"the stopped {kind} probe of {container} was counted")


@dataclass
class Setup:
    harness: CheckingHarness

    def add(self) -> None:
        """Add pod db first, so the probes of pod web wait for the slot."""
        for each, name in ((DB, "db-1"), (WEB, "web-1")):
            self.harness.runs(each, name)
            self.harness.probes.add_pod(each)

    def wake(self) -> None:
        self.harness.probes.wake(uid_of(WEB), ["web"])

    def replace_container(self) -> None:
        self.harness.runs(WEB, "web-2")

    def come_back(self) -> None:
        """Remove the pod and add its UID again."""
        self.harness.probes.remove_pod(uid_of(WEB))
        self.harness.runs(WEB, "web-2")
        self.harness.probes.add_pod(WEB)

    def fail(self) -> None:
        self.harness.report = UNHEALTHY

    def end(self) -> None:
        """Publish that the pod has succeeded."""
        self.harness.statuses[uid_of(WEB)] = PodStatus(phase="Succeeded")

    def results(self) -> object:
        probes = self.harness.probes
        views = {each: probes.view(uid_of(each)) for each in (WEB, DB)}
        return [
            (view.readiness, view.startup, view.workers, probes.liveness(uid_of(each))) for each, view in views.items()
        ]

    def is_sound(self) -> None:
        harness = self.harness
        assert not harness.wrong
        assert harness.max_of_one_probe <= 1
        assert harness.max_concurrent <= harness.limit
        assert harness.in_flight.total() == 0
        sent = {container_id: result for _, kind, container_id, result in harness.sent if kind is READINESS}
        for each in (WEB, DB):
            for container_id, result in harness.probes.view(uid_of(each)).readiness.items():
                assert sent.get(container_id, FAILURE) is result  # an initial failure is not sent

    async def every_worker_goes_on(self) -> None:
        """Check that no worker has lost its timer and no slot is lost."""
        harness = self.harness
        harness.report = HEALTHY
        for each, name in ((WEB, "web-9"), (DB, "db-9")):
            harness.runs(each, name)
        before = len(harness.executed)
        self.wake()
        await asyncio.sleep(1)
        woken = {(name, kind) for _, name, kind in harness.executed[before:]}
        assert (("web", READINESS) in woken) == (("web", READINESS) in harness.probes.view(uid_of(WEB)).workers)
        await asyncio.sleep(PERIODS_SECONDS)
        workers = harness.probes.view(uid_of(WEB)).workers | harness.probes.view(uid_of(DB)).workers
        assert {(name, kind) for _, name, kind in harness.executed[before:]} == workers
        assert len(harness.probes) == len(workers)
        results = {**harness.probes.view(uid_of(WEB)).readiness, **harness.probes.view(uid_of(DB)).readiness}
        assert results == {f"fake://{name}-9": SUCCESS for name, kind in workers if kind is READINESS}


Setups = Callable[[PortCalls], AbstractAsyncContextManager[Setup]]


def setup(slots: int, lease_seconds: float, *, added: bool) -> Setups:
    """Return a setup with few slots for three workers. `added`: both pods are probed already."""

    @asynccontextmanager
    async def running(calls: PortCalls) -> AsyncIterator[Setup]:
        harness = CheckingHarness(slots=slots, lease_seconds=lease_seconds, calls=calls)
        harness.takes = lambda _: EXECUTION_SECONDS
        async with asyncio.TaskGroup() as group:
            task = group.create_task(harness.probes.run())
            await asyncio.sleep(3600)  # a young agent would spread its first ticks
            made = Setup(harness)
            if added:
                made.add()
                await asyncio.sleep(2)
            yield made
            task.cancel()

    return running


async def begin(setup: Setup) -> None:
    setup.add()
    await asyncio.sleep(1)


async def probe_at_once(setup: Setup) -> None:
    setup.wake()
    await asyncio.sleep(1)


OPERATIONS = {
    name: OperationTest(
        setup=on,
        run=run,
        state=Setup.results,
        check=Setup.is_sound,
        afterwards=Setup.every_worker_goes_on,
        settle_seconds=PERIODS_SECONDS,
    )
    for name, on, run in (
        ("first ticks", setup(1, 60, added=False), begin),
        ("first ticks with short leases", setup(1, 0.2, added=False), begin),
        ("at once", setup(2, 60, added=True), probe_at_once),
    )
}
EVENTS: dict[str, Event[Setup]] = {
    "a wake-up": Setup.wake,
    "the pod is added again": lambda setup: setup.harness.probes.add_pod(replace(WEB)),
    "the container is replaced": Setup.replace_container,
    "the container exits": lambda setup: setup.harness.exits(WEB, "web-1", 1),
    "the probes fail": Setup.fail,
    "the pod ends": Setup.end,
    "the pod terminates": lambda setup: setup.harness.probes.stop_liveness_and_startup(WEB),
    "the pod is removed": lambda setup: setup.harness.probes.keep_only([uid_of(DB)]),
    "the pod is removed and added again": Setup.come_back,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_probes_are_executed(operation: OperationTest[Setup]) -> None:
    # No cancellations: executions belong to `run`, which is cancelled only when the agent ends.
    interleave(operation, EVENTS, in_call_order=True, cancel=False)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_execution_fails_once(operation: OperationTest[Setup]) -> None:
    fail_each_call(operation)
