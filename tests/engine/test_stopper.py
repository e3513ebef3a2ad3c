"""Stopping: hook, TERM and KILL share one grace period; sidecars stop last; a shorter grace period applies at once."""

import asyncio

import pytest

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import RecordState
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.plan import ContainerToKill
from podkeeper.runtimes.fake import Behaviour, ExecStep, Operation
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_harness import UID, ExecutionHarness, container, running_harness, sleep

IGNORES_TERM = Behaviour(term_seconds=None)


def killed(of: Pod, behaviours: dict[str, Behaviour], grace: int | None = None) -> ExecutionHarness:
    """Start a pod at 0 s, kill it at once, and return the harness."""

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            for name, behaviour in behaviours.items():
                harness.fake.behave("web", name, behaviour)
            while len(harness.fake.live_containers()) < len(of.spec.containers) + len(of.spec.init_containers or ()):
                await harness.sync(of)
            await harness.kill(of, grace)
            await harness.note_exits()
            assert not harness.fake.live_containers()
            return harness

    return simulate(scenario())[0]


def test_a_container_that_exits_on_term_is_followed_by_its_sandbox() -> None:
    harness = killed(pod("web", container("web")), {"web": Behaviour(term_seconds=3, term_exit_code=7)})
    assert harness.ended == {"web": (3.0, 7)}
    assert harness.changes()[-2:] == [(Operation.STOP_CONTAINER, "web"), (Operation.STOP_SANDBOX, "")]
    assert harness.events("Killing") == [("Killing", "Stopping container web")]
    assert harness.recorded[-1].container_path == "spec.containers{web}"


def test_a_container_that_ignores_term_is_killed_after_its_grace_period() -> None:
    assert killed(pod("web", container("web"), grace=30), {"web": IGNORES_TERM}).ended == {"web": (30.0, 137)}


def test_an_override_replaces_the_grace_period_with_a_minimum_of_two_seconds() -> None:
    assert killed(pod("web", container("web")), {"web": IGNORES_TERM}, grace=5).ended == {"web": (5.0, 137)}
    assert killed(pod("web", container("web")), {"web": IGNORES_TERM}, grace=1).ended == {"web": (2.0, 137)}


def test_containers_stop_at_the_same_time() -> None:
    harness = killed(pod("web", container("a"), container("b"), grace=9), {"a": IGNORES_TERM, "b": IGNORES_TERM})
    assert harness.ended == {"a": (9.0, 137), "b": (9.0, 137)}


# Pain 13: grace period counted twice with preStop.


def test_hook_term_and_kill_share_one_grace_period() -> None:
    spec = pod("web", container("web", pre_stop=sleep(12)), grace=30)
    harness = killed(spec, {"web": IGNORES_TERM})
    assert harness.stops() == [("web", 12.0, 18)]
    assert harness.ended == {"web": (30.0, 137)}


def test_a_hung_hook_leaves_two_seconds_for_the_container() -> None:
    hangs = Behaviour(term_seconds=None, exec=(ExecStep(takes_seconds=999),))
    harness = killed(pod("web", container("web", pre_stop=exec_hook("drain")), grace=30), {"web": hangs})
    assert harness.stops() == [("web", 30.0, 2)]
    assert harness.events("FailedPreStopHook") == [("FailedPreStopHook", "PreStopHook failed")]


def test_a_container_is_stopped_after_its_hook_failed() -> None:
    fails = Behaviour(exec=(ExecStep(exit_code=3, output="secret"),))
    harness = killed(pod("web", container("web", pre_stop=exec_hook("drain"))), {"web": fails})
    assert harness.ended == {"web": (0.0, 0)}
    assert harness.events("FailedPreStopHook") == [("FailedPreStopHook", "PreStopHook failed")]


def test_no_hook_runs_with_a_grace_period_of_zero() -> None:
    harness = killed(pod("web", container("web", pre_stop=exec_hook("drain"))), {}, grace=0)
    assert harness.changes(Operation.EXEC_SYNC) == []
    assert harness.stops() == [("web", 0.0, 2)]


# Order.


def test_sidecars_stop_last_in_reverse_order() -> None:
    spec = pod(
        "web", container("web"), init=(container("log", sidecar=True), container("mesh", sidecar=True)), grace=30
    )
    slow = Behaviour(term_seconds=4)
    harness = killed(spec, dict.fromkeys(("web", "log", "mesh"), slow))
    assert harness.stops() == [("web", 0.0, 30), ("mesh", 4.0, 26), ("log", 8.0, 22)]
    assert harness.ended == {"web": (4.0, 0), "mesh": (8.0, 0), "log": (12.0, 0)}


def test_a_sidecar_waits_at_most_for_its_grace_period() -> None:
    spec = pod("web", container("web"), init=(container("mesh", sidecar=True),), grace=10)
    harness = killed(spec, {"web": IGNORES_TERM, "mesh": IGNORES_TERM})
    assert harness.stops() == [("web", 0.0, 10), ("mesh", 10.0, 2)]
    assert harness.ended["mesh"] == (12.0, 137)


def test_hooks_of_sidecars_run_at_once() -> None:
    spec = pod("web", container("web"), init=(container("mesh", sidecar=True, pre_stop=sleep(6)),), grace=30)
    harness = killed(spec, {"web": Behaviour(term_seconds=4)})
    assert harness.stops() == [("web", 0.0, 30), ("mesh", 6.0, 24)]


# Shorter grace periods.


def shortened(of: Pod, behaviour: Behaviour, at: float, grace: int) -> tuple[ExecutionHarness, float]:
    """Kill with the pod's grace period at 0 s. At `at`, cancel that sync and kill with another. Return the end time."""

    async def scenario() -> tuple[ExecutionHarness, float]:
        async with running_harness() as harness:
            harness.fake.behave("web", "*", behaviour)
            await harness.sync(of)
            async with asyncio.TaskGroup() as group:
                first = group.create_task(harness.kill(of))
                await asyncio.sleep(at)
                first.cancel()
            assert harness.clock.monotonic() == at, "a cancelled sync does not wait for the stop that it began"
            await harness.kill(of, grace)
            over = harness.clock.monotonic()
            assert not harness.fake.live_containers()
            await asyncio.sleep(100)
            return harness, over

    return simulate(scenario())[0]


def test_a_shorter_grace_period_applies_at_once() -> None:
    harness, over = shortened(pod("web", container("web"), grace=600), IGNORES_TERM, at=9, grace=2)
    assert over == 11
    assert harness.stops() == [("web", 0.0, 600), ("web", 9.0, 2)]
    assert len(harness.events("Killing")) == 1


def test_a_longer_grace_period_is_ignored() -> None:
    harness, over = shortened(pod("web", container("web"), grace=30), IGNORES_TERM, at=9, grace=300)
    assert over == 30
    assert harness.stops() == [("web", 0.0, 30)]


def test_a_shorter_grace_period_ends_a_running_hook_which_never_runs_again() -> None:
    hangs = Behaviour(term_seconds=None, exec=(ExecStep(takes_seconds=999),))
    spec = pod("web", container("web", pre_stop=exec_hook("drain")), grace=600)
    harness, over = shortened(spec, hangs, at=9, grace=3)
    assert over == 14  # three seconds for the hook to end, two for the container
    assert len(harness.changes(Operation.EXEC_SYNC)) == 1


def test_a_shorter_grace_period_ends_the_wait_of_a_sidecar() -> None:
    spec = pod("web", container("web"), init=(container("mesh", sidecar=True),), grace=600)

    async def scenario() -> float:
        async with running_harness() as harness:
            harness.fake.behave("web", "*", IGNORES_TERM)
            await harness.sync(spec)
            await harness.sync(spec)
            async with asyncio.TaskGroup() as group:
                first = group.create_task(harness.kill(spec))
                await asyncio.sleep(9)
                first.cancel()
            await harness.kill(spec, 4)
            assert not harness.fake.live_containers()
            return harness.clock.monotonic()

    assert simulate(scenario())[0] == 15  # four for the app, and then two for the sidecar


# Failures.


def test_a_failed_stop_is_retried_with_the_rest_of_the_grace_period() -> None:
    spec = pod("web", container("web", pre_stop=sleep(10)), grace=30)

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", IGNORES_TERM)
            await harness.sync(spec)
            harness.fake.faults.fail(Operation.STOP_CONTAINER, UID)
            harness.fake.faults.fail(Operation.STOP_SANDBOX, UID)
            with pytest.raises(ExceptionGroup) as caught:
                await harness.kill(spec)
            assert [type(error) for error in caught.value.exceptions] == [RuntimeRefused, RuntimeRefused]
            await asyncio.sleep(5)
            await harness.kill(spec)
            assert not harness.fake.live_containers()
            return harness

    harness, seconds = simulate(scenario())
    assert (harness.stops(), seconds) == ([("web", 10.0, 20), ("web", 15.0, 15)], 30.0)


def test_the_sandbox_is_stopped_even_if_a_container_stop_failed() -> None:
    spec = pod("web", container("web"))

    async def scenario() -> None:
        async with running_harness() as harness:
            await harness.sync(spec)
            harness.fake.faults.fail(Operation.STOP_CONTAINER, UID, times=None)
            with pytest.raises(ExceptionGroup):
                await harness.kill(spec)
            assert not harness.fake.live_containers()

    simulate(scenario())


def test_an_orphaned_pod_is_stopped_without_hooks() -> None:
    spec = pod("web", container("web", pre_stop=sleep(20)))

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", IGNORES_TERM)
            await harness.sync(spec)
            await harness.executor.kill_running_pod(await harness.inspect(), 1)
            assert not harness.fake.live_containers()
            return harness

    harness, seconds = simulate(scenario())
    assert (harness.stops(), seconds) == ([("web", 0.0, 2)], 2.0)
    assert harness.recorded[-1].container_path == "implicitly required container web"


def test_killing_a_pod_joins_a_kill_of_one_of_its_containers() -> None:
    spec = pod("web", container("web", pre_stop=sleep(5)), grace=30)

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", IGNORES_TERM)
            await harness.sync(spec)
            record = await harness.inspect()
            kill = ContainerToKill(
                record.containers[0].id, "web", "Container web failed liveness probe", KillReason.LIVENESS_PROBE
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(harness.stopper.kill_containers(spec, record, (kill,)))
                await asyncio.sleep(1)
                await harness.kill(spec, 10)
            return harness

    harness, seconds = simulate(scenario())
    assert (harness.stops(), seconds) == ([("web", 5.0, 6)], 11.0)
    assert harness.events("Killing") == [("Killing", "Container web failed liveness probe")]


def test_an_exited_container_is_not_stopped() -> None:
    spec = pod("web", container("web"), policy="Never")

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await harness.sync(spec)
            harness.fake.end_container(UID, "web", 5)
            await harness.kill(spec)
            record = await harness.inspect()
            assert [(found.state, found.exit_code) for found in record.containers] == [(RecordState.EXITED, 5)]
            return harness

    assert simulate(scenario())[0].stops() == []
