"""Stopping: hook, TERM and KILL share one grace; sidecars go last; a shortened grace takes effect at once."""

import asyncio

import pytest

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ContainerState
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.plan import ContainerToKill
from podkeeper.runtimes.fake import Behaviour, ExecStep, Operation
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_house import UID, House, command, container, house, pod, sleep

STUBBORN = Behaviour(term_seconds=None)


def scenario_kill(of: Pod, behaviours: dict[str, Behaviour], grace: int | None = None) -> House:
    """Start a pod at 0 s, kill it then, and return the house as it was left."""

    async def scenario() -> House:
        async with house() as home:
            for name, behaviour in behaviours.items():
                home.fake.behave("web", name, behaviour)
            while len(home.fake.live_containers()) < len(of.spec.containers) + len(of.spec.init_containers or ()):
                await home.sync(of)
            await home.kill(of, grace)
            await home.note_exits()
            assert not home.fake.live_containers()
            return home

    return simulate(scenario())[0]


def test_a_polite_container_ends_when_asked_and_its_sandbox_is_stopped_after_it() -> None:
    home = scenario_kill(pod(container("web")), {"web": Behaviour(term_seconds=3, term_exit_code=7)})
    assert home.ended == {"web": (3.0, 7)}
    assert home.changes()[-2:] == [(Operation.STOP_CONTAINER, "web"), (Operation.STOP_SANDBOX, "")]
    assert home.events("Killing") == [("Killing", "Stopping container web")]
    assert home.told[-1].container_path == "spec.containers{web}"


def test_a_stubborn_container_is_forced_when_its_grace_is_over() -> None:
    assert scenario_kill(pod(container("web"), grace=30), {"web": STUBBORN}).ended == {"web": (30.0, 137)}


def test_an_override_replaces_the_grace_of_the_spec_but_a_container_always_has_two_seconds() -> None:
    assert scenario_kill(pod(container("web")), {"web": STUBBORN}, grace=5).ended == {"web": (5.0, 137)}
    assert scenario_kill(pod(container("web")), {"web": STUBBORN}, grace=1).ended == {"web": (2.0, 137)}


def test_containers_stop_at_the_same_time() -> None:
    home = scenario_kill(pod(container("a"), container("b"), grace=9), {"a": STUBBORN, "b": STUBBORN})
    assert home.ended == {"a": (9.0, 137), "b": (9.0, 137)}


# Pain 13: grace counted twice with preStop.


def test_hook_term_and_kill_together_fit_the_grace() -> None:
    spec = pod(container("web", pre_stop=sleep(12)), grace=30)
    home = scenario_kill(spec, {"web": STUBBORN})
    assert home.stops() == [("web", 12.0, 18)]
    assert home.ended == {"web": (30.0, 137)}


def test_a_hook_that_never_ends_leaves_two_seconds_for_the_container() -> None:
    hangs = Behaviour(term_seconds=None, exec=(ExecStep(takes_seconds=999),))
    home = scenario_kill(pod(container("web", pre_stop=command("drain")), grace=30), {"web": hangs})
    assert home.stops() == [("web", 30.0, 2)]
    assert home.events("FailedPreStopHook") == [("FailedPreStopHook", "PreStopHook failed")]


def test_a_hook_that_fails_does_not_keep_the_container_alive() -> None:
    fails = Behaviour(exec=(ExecStep(exit_code=3, output="secret"),))
    home = scenario_kill(pod(container("web", pre_stop=command("drain"))), {"web": fails})
    assert home.ended == {"web": (0.0, 0)}
    assert home.events("FailedPreStopHook") == [("FailedPreStopHook", "PreStopHook failed")]


def test_no_hook_is_run_when_there_is_no_time_for_it() -> None:
    home = scenario_kill(pod(container("web", pre_stop=command("drain"))), {}, grace=0)
    assert home.changes(Operation.EXEC_SYNC) == []
    assert home.stops() == [("web", 0.0, 2)]


# Order.


def test_sidecars_go_last_in_the_reverse_of_their_start() -> None:
    spec = pod(container("web"), init=(container("log", sidecar=True), container("mesh", sidecar=True)), grace=30)
    slow = Behaviour(term_seconds=4)
    home = scenario_kill(spec, dict.fromkeys(("web", "log", "mesh"), slow))
    assert home.stops() == [("web", 0.0, 30), ("mesh", 4.0, 26), ("log", 8.0, 22)]
    assert home.ended == {"web": (4.0, 0), "mesh": (8.0, 0), "log": (12.0, 0)}


def test_a_sidecar_waits_no_longer_than_its_grace() -> None:
    spec = pod(container("web"), init=(container("mesh", sidecar=True),), grace=10)
    home = scenario_kill(spec, {"web": STUBBORN, "mesh": STUBBORN})
    assert home.stops() == [("web", 0.0, 10), ("mesh", 10.0, 2)]
    assert home.ended["mesh"] == (12.0, 137)


def test_hooks_of_sidecars_do_not_wait_for_their_turn() -> None:
    spec = pod(container("web"), init=(container("mesh", sidecar=True, pre_stop=sleep(6)),), grace=30)
    home = scenario_kill(spec, {"web": Behaviour(term_seconds=4)})
    assert home.stops() == [("web", 0.0, 30), ("mesh", 6.0, 24)]


# Cut short.


def shortened(of: Pod, behaviour: Behaviour, at: float, grace: int) -> tuple[House, float]:
    """Kill with the pod's own grace at 0 s; at `at`, cancel that pass and kill with another. When it was over."""

    async def scenario() -> tuple[House, float]:
        async with house() as home:
            home.fake.behave("web", "*", behaviour)
            await home.sync(of)
            async with asyncio.TaskGroup() as group:
                first = group.create_task(home.kill(of))
                await asyncio.sleep(at)
                first.cancel()
            assert home.clock.monotonic() == at, "a cancelled pass does not wait out the stop it began"
            await home.kill(of, grace)
            over = home.clock.monotonic()
            assert not home.fake.live_containers()
            await asyncio.sleep(100)
            return home, over

    return simulate(scenario())[0]


def test_a_shortened_grace_takes_effect_at_once() -> None:
    home, over = shortened(pod(container("web"), grace=600), STUBBORN, at=9, grace=2)
    assert over == 11
    assert home.stops() == [("web", 0.0, 600), ("web", 9.0, 2)]
    assert len(home.events("Killing")) == 1


def test_a_longer_grace_changes_nothing() -> None:
    home, over = shortened(pod(container("web"), grace=30), STUBBORN, at=9, grace=300)
    assert over == 30
    assert home.stops() == [("web", 0.0, 30)]


def test_a_hook_under_way_is_cut_short_too_and_never_run_again() -> None:
    hangs = Behaviour(term_seconds=None, exec=(ExecStep(takes_seconds=999),))
    spec = pod(container("web", pre_stop=command("drain")), grace=600)
    home, over = shortened(spec, hangs, at=9, grace=3)
    assert over == 14  # three seconds for the hook to end, two for the container
    assert len(home.changes(Operation.EXEC_SYNC)) == 1


def test_a_sidecar_that_waits_for_its_turn_is_cut_short_too() -> None:
    spec = pod(container("web"), init=(container("mesh", sidecar=True),), grace=600)

    async def scenario() -> float:
        async with house() as home:
            home.fake.behave("web", "*", STUBBORN)
            await home.sync(spec)
            await home.sync(spec)
            async with asyncio.TaskGroup() as group:
                first = group.create_task(home.kill(spec))
                await asyncio.sleep(9)
                first.cancel()
            await home.kill(spec, 4)
            assert not home.fake.live_containers()
            return home.clock.monotonic()

    assert simulate(scenario())[0] == 15  # four for the app, and then two for the sidecar


# Failures.


def test_a_stop_that_failed_is_retried_with_what_is_left_of_the_grace() -> None:
    spec = pod(container("web", pre_stop=sleep(10)), grace=30)

    async def scenario() -> House:
        async with house() as home:
            home.fake.behave("web", "web", STUBBORN)
            await home.sync(spec)
            home.fake.faults.fail(Operation.STOP_CONTAINER, UID)
            home.fake.faults.fail(Operation.STOP_SANDBOX, UID)
            with pytest.raises(ExceptionGroup) as caught:
                await home.kill(spec)
            assert [type(error) for error in caught.value.exceptions] == [RuntimeRefused, RuntimeRefused]
            await asyncio.sleep(5)
            await home.kill(spec)
            assert not home.fake.live_containers()
            return home

    home, seconds = simulate(scenario())
    assert (home.stops(), seconds) == ([("web", 10.0, 20), ("web", 15.0, 15)], 30.0)


def test_the_sandbox_is_stopped_although_a_container_could_not_be() -> None:
    spec = pod(container("web"))

    async def scenario() -> None:
        async with house() as home:
            await home.sync(spec)
            home.fake.faults.fail(Operation.STOP_CONTAINER, UID, times=None)
            with pytest.raises(ExceptionGroup):
                await home.kill(spec)
            assert not home.fake.live_containers()

    simulate(scenario())


def test_a_pod_nobody_knows_is_stopped_without_hooks() -> None:
    spec = pod(container("web", pre_stop=sleep(20)))

    async def scenario() -> House:
        async with house() as home:
            home.fake.behave("web", "web", STUBBORN)
            await home.sync(spec)
            await home.executor.kill_running_pod(await home.look(), 1)
            assert not home.fake.live_containers()
            return home

    home, seconds = simulate(scenario())
    assert (home.stops(), seconds) == ([("web", 0.0, 2)], 2.0)
    assert home.told[-1].container_path == "implicitly required container web"


def test_killing_a_pod_joins_a_kill_of_one_of_its_containers() -> None:
    spec = pod(container("web", pre_stop=sleep(5)), grace=30)

    async def scenario() -> House:
        async with house() as home:
            home.fake.behave("web", "web", STUBBORN)
            await home.sync(spec)
            record = await home.look()
            kill = ContainerToKill(
                record.containers[0].id, "web", "Container web failed liveness probe", KillReason.LIVENESS_PROBE
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(home.stopper.kill_containers(spec, record, (kill,)))
                await asyncio.sleep(1)
                await home.kill(spec, 10)
            return home

    home, seconds = simulate(scenario())
    assert (home.stops(), seconds) == ([("web", 5.0, 6)], 11.0)
    assert home.events("Killing") == [("Killing", "Container web failed liveness probe")]


def test_what_is_dead_is_not_stopped_again() -> None:
    spec = pod(container("web"), restart_policy="Never")

    async def scenario() -> House:
        async with house() as home:
            await home.sync(spec)
            home.fake.end_container(UID, "web", 5)
            await home.kill(spec)
            record = await home.look()
            assert [(found.state, found.exit_code) for found in record.containers] == [(ContainerState.EXITED, 5)]
            return home

    assert simulate(scenario())[0].stops() == []
