"""Invariants that are checked at once: violations are reported, correct behaviour is not.

Most tests publish records directly on the bus, because a correct agent would not produce these violations.
Then a node with all kinds of pods and many agent crashes must pass for two hours.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import NotFound
from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    EphemeralContainer,
    Pod,
    PodStatus,
)
from podkeeper.model.messages import FILE_SOURCE, Op, PodUID, PodUpdate
from podkeeper.model.runtime import ContainerRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.build import container, exec_hook, probe
from podkeeper.testing.sim.invariants import INVARIANTS, watch
from podkeeper.testing.sim.invariants.call_rate import MAX_PER_NODE, MAX_PER_OBJECT
from podkeeper.testing.sim.invariants.restarts import TIMEOUT_SECONDS
from podkeeper.testing.sim.records import ContainerChanged, UpdateReceived
from podkeeper.testing.sim.world import World
from tests.sim.bus_harness import UID, BusHarness, container_status, deleted, known, mirror
from tests.sim.sim_node import pod

AT_ONCE = ("I1", "I2", "I3", "I4", "I5", "I7", "I12", "I13", "I18", "I19", "I21", "I22")


@pytest.fixture
def harness() -> Iterator[BusHarness]:
    world = World(0)
    yield BusHarness(world)
    world.loop.close()


Action = Callable[[BusHarness], None]
VIOLATIONS: dict[str, tuple[str, Action]] = {}
CORRECT: dict[str, Action] = {}


def violates(invariant: str) -> Callable[[Action], Action]:
    """Add a row to the violations. Its name is that of the function."""

    def add(action: Action) -> Action:
        VIOLATIONS[name_of(action)] = (invariant, action)
        return action

    return add


def violates_nothing(action: Action) -> Action:
    """Add a row to the correct behaviour. Its name is that of the function."""
    CORRECT[name_of(action)] = action
    return action


def name_of(action: Action) -> str:
    return getattr(action, "__name__", "").replace("_", " ")


# I1, I13: monotonic status.


@violates("I1")
def a_finished_pod_runs_again(harness: BusHarness) -> None:
    harness.publishes(known(phase="Succeeded"), known(phase="Running"))


@violates("I1")
def a_running_pod_is_published_as_failed(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.publishes(known(phase="Running"), known(phase="Failed"))


@violates("I1")
def a_failed_pod_becomes_succeeded(harness: BusHarness) -> None:
    harness.publishes(known(phase="Failed"), known(phase="Succeeded"))


@violates("I1")
def a_mirror_reverts_the_terminal_phase_of_its_pod(harness: BusHarness) -> None:
    harness.receives(known(), source=FILE_SOURCE)
    harness.runs("c1")
    harness.ends("c1", 1)
    over = mirror("m1", UID, phase="Failed", container_statuses=(container_status(id_="c1", exit_code=1),))
    harness.publishes(
        over, mirror("m1", UID, phase="Running", container_statuses=(container_status(id_="c1", exit_code=1),))
    )


@violates("I13")
def a_restart_count_falls(harness: BusHarness) -> None:
    harness.publishes(
        known(container_statuses=(container_status(restarts=3),)),
        known(container_statuses=(container_status(restarts=2),)),
    )


# I2: exit statuses.


@violates("I2")
def success_of_a_container_that_never_existed(harness: BusHarness) -> None:
    harness.publishes(known(), known(container_statuses=(container_status(id_="c9", exit_code=0),)))


@violates("I2")
def success_of_a_container_that_failed(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 3)
    harness.publishes(known(), known(container_statuses=(container_status(id_="c1", exit_code=0),)))


@violates("I2")
def success_of_a_container_that_still_runs(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.publishes(known(), known(container_statuses=(container_status(id_="c1", exit_code=0),)))


@violates("I2")
def a_wrong_exit_code(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 3)
    harness.publishes(known(), known(container_statuses=(container_status(id_="c1", exit_code=4),)))


@violates("I2")
def success_of_an_init_container_that_never_ran(harness: BusHarness) -> None:
    harness.publishes(known(), known(init_container_statuses=(container_status("init", exit_code=0),)))


@violates("I2")
def success_of_a_pod_whose_last_run_failed(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 0)
    harness.runs("c2", restart_count=1)
    harness.ends("c2", 1)
    harness.publishes(known(phase="Running"), known(phase="Succeeded"))


@violates("I2")
def success_in_the_last_state_of_another_pod(harness: BusHarness) -> None:
    harness.runs("c1", uid=PodUID("u2"))
    harness.ends("c1", 0, uid=PodUID("u2"))
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=0, container_id="fake://c1"))
    harness.publishes(known(), known(container_statuses=(replace(container_status(), last_state=last),)))


# I3, I4: running containers.


@violates("I3")
def a_container_runs_twice(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.runs("c2", restart_count=1)


@violates("I3")
def an_agent_creates_an_attempt_that_it_has_started(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.starts("c1")
    harness.creates(known(), attempt=0)


@violates("I3")
def a_pod_has_two_sandboxes(harness: BusHarness) -> None:
    harness.sandbox("s1")
    harness.sandbox("s2")


@violates("I3")
def a_static_pod_starts_before_its_predecessor_has_ended(harness: BusHarness) -> None:
    harness.receives(known(uid=PodUID("old")), source=FILE_SOURCE)
    harness.runs("c1", uid=PodUID("old"))
    harness.receives(known(uid=PodUID("new")), source=FILE_SOURCE)
    harness.runs("c2", uid=PodUID("new"))


@violates("I4")
def an_object_is_deleted_while_its_pod_runs(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.publishes(deleted(known()), None)


# I7: repeated runs and lost exit codes.


@violates("I7")
def a_run_once_container_runs_twice(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 1)
    harness.again(pod("job", policy="Never"), "c2")


@violates("I7")
def a_succeeded_container_runs_again(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 0)
    harness.again(pod("job", policy="OnFailure"), "c2")


@violates("I7")
def a_succeeded_container_runs_again_in_another_sandbox(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 0)
    harness.again(pod("job", policy="OnFailure"), "c2", sandbox="s2")


@violates("I7")
def an_init_container_succeeds_twice_in_one_sandbox(harness: BusHarness) -> None:
    harness.runs("c1", "init")
    harness.ends("c1", 0, "init")
    harness.again(pod("web", init=(container("init"),)), "c2", name="init")


@violates("I7")
def a_run_once_pod_is_initialized_again(harness: BusHarness) -> None:
    harness.runs("c1", "init")
    harness.ends("c1", 0, "init")
    harness.again(pod("web", init=(container("init"),), policy="Never"), "c2", name="init", sandbox="s2")


def _the_disk_lost_the_end_of_a_pod(harness: BusHarness, *, removed: bool) -> Pod:
    """An agent ended a pod with a debugger and could not store that. The next agent receives an old list."""
    web = pod("web")
    debugger = EphemeralContainer(name="debugger", image="debug:v1")
    debugged = known(replace(web, spec=replace(web.spec, ephemeral_containers=(debugger,))))
    harness.receives(debugged)
    harness.runs("c1", "debugger")
    harness.ends("c1", 0, "debugger")
    harness.world.journal.disk_full = True
    harness.receives(debugged, op=Op.REMOVE)
    if removed:
        harness.is_removed("c1", "debugger")
    harness.restarts()
    harness.receives(debugged)
    return debugged


@violates("I7")
def a_debugger_runs_again_beside_its_dead_container(harness: BusHarness) -> None:
    harness.again(_the_disk_lost_the_end_of_a_pod(harness, removed=False), "c2", name="debugger", sandbox="s2")


@violates("I7")
def a_debugger_in_the_api_runs_again(harness: BusHarness) -> None:
    debugged = _the_disk_lost_the_end_of_a_pod(harness, removed=True)
    status = PodStatus(ephemeral_container_statuses=(ContainerStatus(name="debugger"),))
    harness.world.api.put(replace(debugged, status=status))
    harness.again(debugged, "c2", 0, name="debugger", sandbox="s2")


@violates("I7")
def an_exit_code_is_lost_with_the_object(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 3)
    harness.publishes(deleted(known(container_statuses=(container_status(exit_code=137),))), None)


@violates("I7")
def a_restart_is_lost_with_the_object(harness: BusHarness) -> None:
    harness.runs("c1", restart_count=2)
    harness.ends("c1", 3)
    harness.publishes(deleted(known(container_statuses=(container_status(id_="c1", exit_code=3, restarts=1),))), None)


# I12: starts after the end.


@violates("I12")
def a_start_after_an_earlier_agent_received_the_deletion(harness: BusHarness) -> None:
    harness.receives(known())
    harness.receives(deleted(known()), op=Op.UPDATE)
    harness.restarts()
    harness.receives(known())  # an older list
    harness.calls("run_sandbox")


@violates("I12")
def a_start_after_an_earlier_agent_received_the_removal(harness: BusHarness) -> None:
    harness.receives(known())
    harness.receives(known(), op=Op.REMOVE)
    harness.restarts()
    harness.receives(known())
    config = ContainerConfig(pod=known(), container=container(), attempt=0, image="", spec_hash="")
    harness.calls("create_container", "s1", config)


@violates("I12")
def a_start_after_the_end_was_published(harness: BusHarness) -> None:
    harness.receives(known())
    harness.publishes(known(phase="Running"), known(phase="Failed"))
    harness.calls("start_container", "c1")


@violates("I12")
def a_start_of_a_static_pod_that_its_source_has_dropped(harness: BusHarness) -> None:
    harness.receives(known(), source=FILE_SOURCE)
    harness.receives(source=FILE_SOURCE)
    harness.restarts()
    harness.calls("run_sandbox")


# I5: grace periods.


@violates("I5")
def a_stop_timeout_is_longer_than_the_grace_period(harness: BusHarness) -> None:
    harness.receives(known(pod("web", grace=5)))
    harness.runs("c1")
    harness.calls("stop_container", "c1", 10)


@violates("I5")
def hook_and_stop_get_a_whole_grace_period_each(harness: BusHarness) -> None:
    harness.receives(known(pod("web", container(pre_stop=exec_hook("bye")), grace=10)))
    harness.runs("c1")
    harness.runs_hook("c1", "bye", begun=harness.at - 6)
    harness.calls("stop_container", "c1", 10)


@violates("I5")
def a_late_loop_uses_the_old_grace_period(harness: BusHarness) -> None:
    harness.world.fault_log.begin(harness.at, "late-wakeups")
    harness.receives(known(pod("web", grace=30)))
    harness.runs("c1")
    harness.receives(deleted(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    harness.at += 11
    harness.calls("stop_container", "c1", 30)


@violates("I5")
def the_old_grace_period_is_used_long_after_it_was_shortened(harness: BusHarness) -> None:
    harness.receives(known(pod("web", grace=30)))
    harness.runs("c1")
    harness.receives(deleted(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    harness.world.fault_log.instant(harness.at, "slow-calls", UID)  # of this pod only, so no updates wait for it
    harness.at += 60
    harness.calls("stop_container", "c1", 30)


@violates("I5")
def a_kill_is_postponed(harness: BusHarness) -> None:
    harness.receives(known(pod("web", grace=60)))
    harness.runs("c1")
    harness.calls("stop_container", "c1", 30)
    harness.at += 10
    harness.calls("stop_container", "c1", 30)


# I18: published running containers.


def _both_run(harness: BusHarness) -> Pod:
    harness.runs("c1")
    harness.runs("c2", "beside")
    return known(container_statuses=(container_status(id_="c1"), container_status("beside", id_="c2")))


@violates("I18")
def a_running_sibling_is_published_as_waiting(harness: BusHarness) -> None:
    waiting = replace(
        container_status("beside"), state=ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
    )
    harness.publishes(_both_run(harness), known(container_statuses=(container_status(id_="c1"), waiting)))


@violates("I18")
def a_running_sibling_is_no_longer_published(harness: BusHarness) -> None:
    harness.publishes(_both_run(harness), known(container_statuses=(container_status(id_="c1"),)))


@violates("I18")
def a_running_container_is_published_with_the_id_of_its_predecessor(harness: BusHarness) -> None:
    harness.runs("c0", "beside")
    harness.ends("c0", 1, "beside")
    harness.publishes(
        _both_run(harness), known(container_statuses=(container_status(id_="c1"), container_status("beside", id_="c0")))
    )


# I19: probes.

PROBED = pod("web", container(readiness=probe()))


@violates("I19")
def a_probe_is_executed_twice_at_the_same_time(harness: BusHarness) -> None:
    harness.receives(known(PROBED))
    harness.at = 10.0
    harness.runs_hook("c1", "check", begun=8.0)
    harness.at = 11.0
    harness.runs_hook("c1", "check", begun=9.0)


# I21: resources in use.


@violates("I21")
def the_volumes_of_a_running_container_are_unmounted(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.removes("volumes", "unmount")


@violates("I21")
def the_cgroup_of_a_running_container_is_removed(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.removes("cgroups", "remove")


# I22: call rates.


@violates("I22")
def a_pod_is_inspected_too_often(harness: BusHarness) -> None:
    for number in range(MAX_PER_OBJECT + 1):
        harness.at = 60.0 + number / 10
        harness.calls("pod_record")


@violates("I22")
def a_container_is_removed_too_often(harness: BusHarness) -> None:
    for _ in range(MAX_PER_OBJECT + 1):
        harness.calls("remove_container", "c1")


@violates("I22")
def the_runtime_is_listed_too_often(harness: BusHarness) -> None:
    for _ in range(MAX_PER_NODE + 1):
        harness.calls("list_pods", uid=PodUID(""))


@pytest.mark.parametrize(("invariant", "mistake"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_is_reported_at_once(
    harness: BusHarness, invariant: str, mistake: Callable[[BusHarness], None]
) -> None:
    mistake(harness)
    assert harness.violated == invariant


# Correct behaviour.


@violates_nothing
def an_agent_creates_what_another_agent_started_late(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.starts("c1")
    harness.restarts()
    harness.creates(known(), attempt=0)  # the runtime refuses it: the start took effect after this agent's inspection


@violates_nothing
def a_user_does_what_the_agent_must_not_do(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.publishes(
        known(phase="Failed"), known(phase="Running", container_statuses=(container_status(exit_code=0),)), by=0
    )
    harness.publishes(deleted(known()), None, by=0)  # a force delete


@violates_nothing
def a_mirror_shows_the_successor_of_its_pod(harness: BusHarness) -> None:
    harness.receives(known(uid=PodUID("old")), source=FILE_SOURCE)
    harness.runs("c1", uid=PodUID("old"), restart_count=4)
    harness.ends("c1", 1, uid=PodUID("old"))
    harness.receives(known(uid=PodUID("new")), source=FILE_SOURCE)
    harness.runs("c2", uid=PodUID("new"))
    over = mirror(
        "m1", "old", phase="Failed", container_statuses=(container_status(id_="c1", exit_code=1, restarts=4),)
    )
    harness.publishes(over, mirror("m1", "old", phase="Running", container_statuses=(container_status(id_="c2"),)))
    harness.publishes(mirror("m1", "old"), None)


@violates_nothing
def an_unseen_end_is_published_as_unknown(harness: BusHarness) -> None:
    harness.publishes(known(), known(container_statuses=(container_status(exit_code=137),)))


@violates_nothing
def the_last_end_is_behind_an_attempt_that_never_started(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 3)
    unstarted = ContainerRecord(id="c2", name="app", state=RecordState.CREATED, restart_count=1)
    harness.world.bus.publish(ContainerChanged(harness.at, UID, unstarted, RuntimeEventType.CREATED))
    last = container_status(id_="c1", exit_code=3).state
    harness.publishes(
        deleted(known(container_statuses=(replace(container_status(exit_code=137, restarts=1), last_state=last),))),
        None,
    )


@violates_nothing
def each_of_many_dead_containers_is_removed_at_every_housekeeping(harness: BusHarness) -> None:
    for number in range(30):
        harness.at = 2.0 * number
        for dead in range(10):
            harness.calls("remove_container", f"c{dead}")


@violates_nothing
def a_failed_container_runs_again(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1", 1)
    harness.again(pod("job", policy="OnFailure"), "c2")


@violates_nothing
def a_container_stopped_by_a_probe_runs_again_after_exit_code_0(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.calls("stop_container", "c1", 2)
    harness.ends("c1", 0)
    harness.again(pod("job", policy="OnFailure"), "c2")


@violates_nothing
def a_run_once_container_runs_again_after_an_image_change(harness: BusHarness) -> None:
    harness.runs("c1", spec_hash="old")
    harness.calls("stop_container", "c1", 2)
    harness.ends("c1", 0)
    harness.again(pod("job", policy="Never"), "c2")


@violates_nothing
def a_debugger_runs_again_after_its_first_run_left_no_trace(harness: BusHarness) -> None:
    harness.again(_the_disk_lost_the_end_of_a_pod(harness, removed=True), "c2", 0, name="debugger", sandbox="s2")


@violates_nothing
def an_init_container_runs_again_in_a_new_sandbox(harness: BusHarness) -> None:
    harness.runs("c1", "init")
    harness.ends("c1", 0, "init")
    harness.again(pod("web", init=(container("init"),)), "c2", name="init", sandbox="s2")


@violates_nothing
def a_static_pod_that_is_added_again_starts_a_new_term(harness: BusHarness) -> None:
    once = known(pod("job", policy="Never"))
    harness.receives(once, source=FILE_SOURCE)
    harness.again(once, "c1", 0)
    harness.ends("c1", 1)
    harness.receives(source=FILE_SOURCE)
    harness.at += 1
    harness.receives(once, source=FILE_SOURCE)
    harness.again(once, "c2", 1)


@violates_nothing
def a_list_from_before_a_pods_creation_is_no_end(harness: BusHarness) -> None:
    there = harness.world.api.put(pod("web"))
    harness.receives(there)
    harness.restarts()
    harness.receives()
    harness.receives(there, op=Op.ADD)
    harness.calls("run_sandbox", uid=PodUID(there.metadata.uid or ""))


@violates_nothing
def a_grace_period_is_shortened(harness: BusHarness) -> None:
    harness.receives(known(pod("web", container(pre_stop=exec_hook("bye")), grace=60)))
    harness.runs("c1")
    harness.runs_hook("c1", "bye", begun=harness.at - 20)
    harness.calls("stop_container", "c1", 40)
    harness.calls("stop_container", "c1", 2)


@violates_nothing
def a_stop_with_the_old_grace_period_comes_late(harness: BusHarness) -> None:
    harness.receives(known(pod("web", grace=10)))
    harness.runs("c1")
    harness.receives(deleted(known(pod("web", grace=10)), grace=60), op=Op.UPDATE)
    harness.receives(deleted(known(pod("web", grace=10)), grace=2), op=Op.UPDATE)
    harness.calls("stop_container", "c1", 2)
    harness.at += 1
    harness.calls("stop_container", "c1", 60)


@violates_nothing
def a_stop_follows_its_hook_after_a_late_wake_up(harness: BusHarness) -> None:
    harness.receives(known(pod("web", container(pre_stop=exec_hook("bye")), grace=5)))
    harness.runs("c1")
    harness.world.fault_log.begin(harness.at, "late-wakeups")
    harness.runs_hook("c1", "bye", begun=harness.at)
    harness.at += 1.5
    harness.calls("stop_container", "c1", 5)


@violates_nothing
def updates_wait_until_the_runtime_recovers(harness: BusHarness) -> None:
    harness.receives(known(pod("web", grace=30)))
    harness.runs("c1")
    harness.receives(deleted(known(pod("web", grace=30)), grace=30), op=Op.UPDATE)
    harness.receives(deleted(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    slow = harness.world.fault_log.begin(harness.at, "slow-calls")
    harness.at += 60
    harness.world.fault_log.end(harness.at, slow)
    harness.calls("stop_container", "c1", 30)
    harness.calls("stop_container", "c1", 2)


@violates_nothing
def updates_are_handled_late_after_the_runtime_recovers(harness: BusHarness) -> None:
    """Seed 545: the loop checks an unhealthy runtime every 5 s at most, and this wake-up came late."""
    harness.receives(known(pod("web", grace=30)))
    harness.runs("c1")
    harness.receives(deleted(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    harness.world.fault_log.end(harness.at, harness.world.fault_log.begin(harness.at, "runtime-errors"))
    harness.world.fault_log.begin(harness.at, "late-wakeups")
    harness.at += 7
    harness.calls("stop_container", "c1", 30)


@violates_nothing
def a_new_agent_uses_a_whole_grace_period_again(harness: BusHarness) -> None:
    harness.receives(known(pod("web", grace=60)))
    harness.runs("c1")
    harness.calls("stop_container", "c1", 5)
    harness.restarts()
    harness.calls("stop_container", "c1", 60)


@violates_nothing
def a_container_that_ended_is_published_as_waiting(harness: BusHarness) -> None:
    before = _both_run(harness)
    harness.ends("c2", 1, "beside")
    harness.publishes(
        before,
        known(
            container_statuses=(container_status(id_="c1"), replace(container_status("beside"), state=ContainerState()))
        ),
    )


@violates_nothing
def a_mirror_shows_the_successor_while_its_pod_still_runs(harness: BusHarness) -> None:
    harness.receives(known(), source=FILE_SOURCE)
    harness.runs("c1")
    harness.receives(known(uid=PodUID("new")), source=FILE_SOURCE)
    waiting = replace(container_status(), state=ContainerState())
    harness.publishes(
        mirror("m1", UID, container_statuses=(container_status(id_="c1"),)),
        mirror("m1", UID, container_statuses=(waiting,)),
    )


@violates_nothing
def a_probe_is_executed_again_after_its_end(harness: BusHarness) -> None:
    harness.receives(known(PROBED))
    harness.at = 10.0
    harness.runs_hook("c1", "check", begun=8.0)
    harness.at = 12.0
    harness.runs_hook("c1", "check", begun=10.0)


@violates_nothing
def probes_of_two_attempts_and_of_two_agents_overlap(harness: BusHarness) -> None:
    harness.receives(known(PROBED))
    harness.at = 10.0
    harness.runs_hook("c1", "check", begun=8.0)
    harness.runs_hook("c2", "check", begun=9.0)
    harness.restarts()
    harness.runs_hook("c2", "check", begun=9.5)


@violates_nothing
def a_hook_is_executed_twice_at_the_same_time(harness: BusHarness) -> None:
    harness.receives(known(PROBED))
    harness.at = 10.0
    harness.runs_hook("c1", "bye", begun=8.0)
    harness.runs_hook("c1", "bye", begun=9.0)


@violates_nothing
def volumes_and_cgroup_of_an_ended_pod_are_removed(harness: BusHarness) -> None:
    harness.runs("c1")
    harness.ends("c1")
    harness.removes("volumes", "unmount")
    harness.removes("cgroups", "remove")


@violates_nothing
def the_cgroup_is_removed_while_a_start_call_has_no_answer(harness: BusHarness) -> None:
    harness.world.fault_log.instant(harness.at, "lost-answers", UID)
    harness.runs("c1")
    harness.removes("cgroups", "remove")


@violates_nothing
def a_pod_is_inspected_every_second(harness: BusHarness) -> None:
    for number in range(3 * MAX_PER_OBJECT):
        harness.at = float(number)
        harness.calls("pod_record")


@pytest.mark.parametrize("action", CORRECT.values(), ids=CORRECT.keys())
def test_correct_behaviour_is_no_violation(harness: BusHarness, action: Callable[[BusHarness], None]) -> None:
    action(harness)
    assert harness.world.violation is None


# Checks that need time or a real agent.


def test_a_pod_that_exceeds_its_grace_period_is_reported() -> None:
    world = World(0)

    async def scenario() -> None:
        harness = BusHarness(world)
        harness.at = world.now()
        harness.runs("c1")
        harness.receives(deleted(known(), grace=10))
        await asyncio.sleep(60)

    violation = world.run(scenario).violation
    assert violation is not None
    assert (violation.invariant, violation.at) == ("I5", 15.0)


def test_a_shortened_grace_period_counts_from_its_arrival() -> None:
    world = World(0)

    async def scenario() -> None:
        harness = BusHarness(world)
        harness.at = world.now()
        harness.runs("c1")
        harness.receives(deleted(known(), grace=600))
        await asyncio.sleep(20)
        harness.at = world.now()
        harness.receives(deleted(known(), grace=3))
        await asyncio.sleep(60)

    violation = world.run(scenario).violation
    assert violation is not None
    assert (violation.invariant, violation.at) == ("I5", 28.0)


def test_faults_and_crashes_excuse_a_late_end() -> None:
    world = World(0)

    async def scenario() -> None:
        harness = BusHarness(world)
        harness.at = world.now()
        harness.runs("c1")
        harness.runs("c2", uid=PodUID("u2"))
        harness.receives(deleted(known(), grace=10), op=Op.UPDATE)
        harness.receives(deleted(known(uid=PodUID("u2")), grace=30), op=Op.UPDATE)
        world.fault_log.instant(world.now(), "hung-calls", UID)
        await asyncio.sleep(20)
        harness.restarts()
        await asyncio.sleep(60)

    assert world.run(scenario).violation is None


def test_a_start_in_a_terminating_pod_is_reported() -> None:
    world = World(0)

    async def scenario() -> None:
        harness = BusHarness(world)
        uid = PodUID(world.api.put(pod("web", behaviours={"app": Behaviour(term_seconds=None)})).metadata.uid or "")
        await asyncio.sleep(5)
        world.api.mark_deleted(Pod, "web", "default")
        await asyncio.sleep(5)
        harness.calls("start_container", "c9", uid=uid)

    violation = world.run(scenario).violation
    assert violation is not None
    assert violation.invariant == "I12"


def test_violations_of_the_runtime_are_reported() -> None:
    world = World(0)

    async def scenario() -> None:
        BusHarness(world)
        uid = PodUID(world.api.put(pod("web")).metadata.uid or "")
        await asyncio.sleep(5)
        live = next(run for run in world.truth.all_running() if run.uid == uid)
        spec = world.api.peek(Pod, "web", "default") or pod("web")
        config = ContainerConfig(pod=spec, container=spec.spec.containers[0], attempt=1, image=live.image, spec_hash="")
        await world.runtime.start_container(await world.runtime.create_container(live.sandbox_id, config))

    violation = world.run(scenario).violation
    assert violation is not None
    assert violation.invariant == "I3"


# Bugs that the invariants found in the engine.


def test_an_evicted_pod_keeps_its_exit_codes() -> None:
    """Its dead containers were removed before their inspection, so their exit codes were published as unknown."""
    world = World(0)
    watch(world)

    async def scenario() -> None:
        world.api.put(pod("web", behaviours={"app": Behaviour(term_exit_code=7)}))
        await asyncio.sleep(5)
        assert world.agent is not None
        evicted = world.agent.engine.manager.pod_by_full_name("web_default")
        assert evicted is not None
        await world.agent.engine.workers.kill_pod(evicted, evict=True)
        world.api.mark_deleted(Pod, "web", "default")
        await asyncio.sleep(30)

    assert world.run(scenario).violation is None
    assert world.checks["I7"] > 0
    assert world.api.peek(Pod, "web", "default") is None


def test_a_list_older_than_the_last_agents_view_starts_nothing() -> None:
    """A restarted agent received an old list and ran deleted pods again, as in Sieve's paper."""
    world = World(0)
    watch(world)

    async def scenario() -> None:
        world.api.put(pod("web"))
        await asyncio.sleep(5)
        before = world.api.version
        world.api.mark_deleted(Pod, "web", "default")
        await asyncio.sleep(30)
        assert world.api.peek(Pod, "web", "default") is None
        world.api.lists_as_of = before
        world.api.set_watch_pace(delay_seconds=15)
        world.crash()
        await asyncio.sleep(20)
        world.api.lists_as_of = None
        world.api.set_watch_pace()
        await asyncio.sleep(60)

    assert world.run(scenario).violation is None
    assert not list(world.truth.all_running())


def test_an_old_journal_entry_on_a_full_disk_reverts_no_status() -> None:
    """After the restart, the old journal entry replaced a newer status in the API: the restart count fell."""
    world = World(0)
    watch(world)

    def restarts() -> int:
        found = world.api.peek(Pod, "web", "default")
        assert found is not None
        return sum(each.restart_count for each in found.status.container_statuses or ())

    async def scenario() -> None:
        world.api.put(pod("web"))
        await asyncio.sleep(5)
        (live,) = world.truth.all_running()
        world.journal.disk_full = True
        world.runtime.end_container(live.uid, "app", 1)
        await asyncio.sleep(30)
        assert restarts() == 1
        world.runtime.go_down()  # so that the agent cannot inspect it
        world.crash()
        await asyncio.sleep(40)
        world.journal.disk_full = False
        world.runtime.come_up()
        await asyncio.sleep(60)

    assert world.run(scenario).violation is None
    assert restarts() == 1


def test_a_static_pod_added_again_while_it_terminates_keeps_its_restart_count() -> None:
    """Its status was dropped as orphaned while it still terminated, so its mirror showed fewer restarts than before."""
    world = World(0)
    watch(world)
    place, manifest = (
        "/etc/podkeeper/stat.yaml",
        pod("stat", grace=20, behaviours={"app": Behaviour(term_seconds=None)}),
    )

    async def replaced_for(seconds: float) -> None:
        world.files.write(place, pod("stat", container(image="app:v2"), grace=20))
        await asyncio.sleep(seconds)
        world.files.write(place, manifest)
        await asyncio.sleep(20.1 - seconds)  # it has just ended

    async def scenario() -> None:
        (static,) = world.files.write(place, manifest)
        await asyncio.sleep(5)
        await replaced_for(0.1)
        for run in world.truth.of_pod(PodUID(static.metadata.uid or "")):
            await world.runtime.remove_container(run.id)  # this resets the runtime's attempt count
        await asyncio.sleep(60)
        await replaced_for(10)
        await asyncio.sleep(60)

    assert world.run(scenario).violation is None
    assert world.checks["I13"] > 0


def test_a_container_created_late_for_a_dead_agent_does_not_hide_the_running_one() -> None:
    """It counted as the newest attempt, so the running one seemed to be gone and was started again."""
    world = World(0)
    watch(world)

    async def scenario() -> None:
        world.api.put(pod("web", behaviours={"app": Behaviour(after_seconds=5, exit_code=1, crashes=2)}))
        await asyncio.sleep(60)
        (live,) = world.truth.all_running()
        assert live.attempt == 2  # and the first one is garbage-collected
        spec = world.api.peek(Pod, "web", "default") or pod("web")
        config = ContainerConfig(pod=spec, container=spec.spec.containers[0], attempt=0, image=live.image, spec_hash="")
        await world.runtime.create_container(live.sandbox_id, config)
        await asyncio.sleep(120)
        assert live.running

    assert world.run(scenario).violation is None


# I20: static pods that are added again.


def test_a_static_pod_that_is_added_again_and_never_runs_is_reported() -> None:
    world = World(0)
    watch(world)
    web = known(pod("web"), PodUID("web"))

    async def scenario() -> None:
        await asyncio.sleep(5)
        for pods in ((web,), (), (web,)):  # only on the bus, not to the agent
            world.bus.publish(UpdateReceived(world.now(), 1, PodUpdate(Op.SET, pods, FILE_SOURCE)))
        await asyncio.sleep(600)

    violation = world.run(scenario).violation
    assert violation is not None
    assert (violation.invariant, violation.uid) == ("I20", "web")
    assert 5 + TIMEOUT_SECONDS < violation.at < 5 + 2 * TIMEOUT_SECONDS


@pytest.mark.parametrize("gone_seconds", [0.1, 5.0, 40.0])
def test_a_static_pod_that_is_added_again_runs_again(gone_seconds: float) -> None:
    world = World(0)
    watch(world)
    place, manifest = (
        "/etc/podkeeper/stat.yaml",
        pod("stat", grace=20, behaviours={"app": Behaviour(term_seconds=None)}),
    )

    async def scenario() -> None:
        world.files.write(place, manifest)
        await asyncio.sleep(10)
        world.files.erase(place)
        await asyncio.sleep(gone_seconds)
        world.files.write(place, manifest)
        await asyncio.sleep(200)

    assert world.run(scenario).violation is None
    assert world.checks["I20"] == 1


def test_a_static_pod_that_is_added_again_may_wait_for_its_backoff() -> None:
    """Seed 395: the invariant waited for 60 s, and a crash loop waits for up to five minutes."""
    world = World(0)
    watch(world)
    place, manifest = (
        "/etc/podkeeper/stat.yaml",
        pod("stat", behaviours={"app": Behaviour(after_seconds=1, exit_code=1)}),
    )

    async def scenario() -> None:
        (made,) = world.files.write(place, manifest)
        uid = PodUID(made.metadata.uid or "")
        await asyncio.sleep(180)
        before = len(world.truth.attempts(uid, "app"))
        world.files.erase(place)
        await asyncio.sleep(0.5)
        world.files.write(place, manifest)
        await asyncio.sleep(2 * TIMEOUT_SECONDS)
        assert len(world.truth.attempts(uid, "app")) == before, "its backoff is not over"
        await asyncio.sleep(300)

    assert world.run(scenario).violation is None
    assert world.checks["I20"] == 1


def test_a_static_pod_that_is_added_again_runs_again_without_the_api() -> None:
    world = World(0)
    watch(world)
    place, manifest = (
        "/etc/podkeeper/stat.yaml",
        pod("stat", grace=20, behaviours={"app": Behaviour(term_seconds=None)}),
    )

    async def scenario() -> None:
        world.files.write(place, manifest)
        world.api.go_down()
        world.crash()
        await asyncio.sleep(10)
        world.files.erase(place)
        await asyncio.sleep(5)
        world.files.write(place, manifest)
        await asyncio.sleep(60)
        assert world.checks["I20"] == 1
        world.api.come_up()
        await asyncio.sleep(200)

    assert world.run(scenario).violation is None


# Two hours with agent crashes and no other faults.


def _pods(number: int) -> Iterable[Pod]:
    """Return one pod of each kind."""
    name = f"pod-{number}"
    yield pod(f"{name}-web", container(readiness=probe()))
    yield pod(f"{name}-crashes", behaviours={"app": Behaviour(after_seconds=5, exit_code=1, crashes=3)})
    yield pod(
        f"{name}-again", policy="OnFailure", behaviours={"app": Behaviour(after_seconds=20, exit_code=1, crashes=2)}
    )
    yield pod(f"{name}-once", policy="Never", behaviours={"app": Behaviour(after_seconds=30, exit_code=number % 2)})
    yield pod(
        f"{name}-init",
        init=(container("first"), container("side", sidecar=True), container("second")),
        policy="OnFailure",
        behaviours={
            "first": Behaviour(after_seconds=3),
            "second": Behaviour(after_seconds=2, exit_code=1, crashes=1),
            "side": Behaviour(term_seconds=None),
            "app": Behaviour(after_seconds=40),
        },
    )
    bye = Behaviour(exec=(ExecStep(takes_seconds=(1, 8, 100)[number % 3]),), term_seconds=None)
    yield pod(f"{name}-hook", container(pre_stop=exec_hook("bye")), grace=10, behaviours={"app": bye})
    sick = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=60, exit_code=1)), term_seconds=2)
    yield pod(f"{name}-sick", container(liveness=probe(period=5)), behaviours={"app": sick})


async def _two_hours(world: World) -> None:
    chance = world.random("story")
    for number in range(8):
        names = [world.api.put(each).metadata.name or "" for each in _pods(number)]
        world.files.write("/etc/podkeeper/stat.yaml", pod("stat", container(image=f"app:{number % 3}"), grace=5))
        await asyncio.sleep(chance.uniform(20, 100))
        world.crash(downtime_seconds=chance.uniform(0.5, 20))
        await asyncio.sleep(chance.uniform(30, 100))
        for name in names:
            for grace in chance.choice([(None,), (None, 2), (60, 1)]):
                with suppress(NotFound):
                    world.api.mark_deleted(Pod, name, "default", grace_seconds=grace)
                await asyncio.sleep(chance.uniform(0, 5))
        if number % 2:
            world.files.erase("/etc/podkeeper/stat.yaml")
        await asyncio.sleep(max(0.0, 900.0 * (number + 1) - world.now()))


def test_a_healthy_node_violates_nothing_and_checks_every_invariant() -> None:
    world = World(7)
    watch(world)
    logging.disable(logging.ERROR)
    try:
        result = world.run(lambda: _two_hours(world))
    finally:
        logging.disable(logging.NOTSET)
    assert result.violation is None
    assert result.seconds >= 7200
    assert result.agents == 9
    assert [each for each in AT_ONCE if not result.checks[each]] == []


def test_every_invariant_has_a_text() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 23)]
    assert all(INVARIANTS.values())
