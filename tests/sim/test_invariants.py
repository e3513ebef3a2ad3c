"""The invariants that are checked at once: each is shown to bite, and to leave alone what is right.

Most of it is told to the bus directly, as if it had happened: what an agent must never do is not easily had from one
that works. Then a node with all kinds of pods, whose agent dies again and again, must pass for two hours.
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
from podkeeper.model.runtime import ContainerRecord
from podkeeper.model.runtime import ContainerState as RuntimeState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.sim.invariants import INVARIANTS, watch
from podkeeper.testing.sim.invariants.restarts import PATIENCE_SECONDS
from podkeeper.testing.sim.invariants.storms import MOST_OF_NODE, MOST_PER_OBJECT
from podkeeper.testing.sim.records import ContainerChanged, Told
from podkeeper.testing.sim.world import World
from tests.sim.stage import UID, Stage, going, known, mirror, said
from tests.sim.stories import container, exec_probe, pod

AT_ONCE = ("I1", "I2", "I3", "I4", "I5", "I7", "I12", "I13", "I18", "I19", "I21", "I22")


@pytest.fixture
def stage() -> Iterator[Stage]:
    world = World(0)
    yield Stage(world)
    world.loop.close()


# I1, I13: what only moves one way.


def _a_finished_pod_runs_again(it: Stage) -> None:
    it.publishes(known(phase="Succeeded"), known(phase="Running"))


def _a_pod_that_runs_is_called_failed(it: Stage) -> None:
    it.runs("c1")
    it.publishes(known(phase="Running"), known(phase="Failed"))


def _a_failed_pod_succeeds_after_all(it: Stage) -> None:
    it.publishes(known(phase="Failed"), known(phase="Succeeded"))


def _a_mirror_takes_back_the_end_of_its_pod(it: Stage) -> None:
    it.hears(known(), source=FILE_SOURCE)
    it.runs("c1")
    it.ends("c1", 1)
    over = mirror("m1", UID, phase="Failed", container_statuses=(said(id_="c1", exit_code=1),))
    it.publishes(over, mirror("m1", UID, phase="Running", container_statuses=(said(id_="c1", exit_code=1),)))


def _a_restart_count_falls(it: Stage) -> None:
    it.publishes(
        known(container_statuses=(said(restarts=3),)),
        known(container_statuses=(said(restarts=2),)),
    )


# I2: what is said of ends.


def _success_of_a_container_that_never_was(it: Stage) -> None:
    it.publishes(known(), known(container_statuses=(said(id_="c9", exit_code=0),)))


def _success_of_a_container_that_failed(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 3)
    it.publishes(known(), known(container_statuses=(said(id_="c1", exit_code=0),)))


def _success_of_a_container_that_still_runs(it: Stage) -> None:
    it.runs("c1")
    it.publishes(known(), known(container_statuses=(said(id_="c1", exit_code=0),)))


def _another_exit_code_than_the_true_one(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 3)
    it.publishes(known(), known(container_statuses=(said(id_="c1", exit_code=4),)))


def _success_of_an_init_container_that_nobody_saw_run(it: Stage) -> None:
    it.publishes(known(), known(init_container_statuses=(said("init", exit_code=0),)))


def _success_of_a_pod_whose_last_run_failed(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 0)
    it.runs("c2", restart_count=1)
    it.ends("c2", 1)
    it.publishes(known(phase="Running"), known(phase="Succeeded"))


def _success_in_a_last_state_that_is_another_pods(it: Stage) -> None:
    it.runs("c1", uid=PodUID("u2"))
    it.ends("c1", 0, uid=PodUID("u2"))
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=0, container_id="fake://c1"))
    it.publishes(known(), known(container_statuses=(replace(said(), last_state=last),)))


# I3, I4: what lives.


def _a_container_lives_twice(it: Stage) -> None:
    it.runs("c1")
    it.runs("c2", restart_count=1)


def _an_agent_creates_again_what_it_has_started(it: Stage) -> None:
    it.runs("c1")
    it.starts("c1")
    it.creates(known(), attempt=0)


def _a_pod_has_two_sandboxes(it: Stage) -> None:
    it.sandbox("s1")
    it.sandbox("s2")


def _a_static_pod_starts_before_its_predecessor_is_gone(it: Stage) -> None:
    it.hears(known(uid=PodUID("old")), source=FILE_SOURCE)
    it.runs("c1", uid=PodUID("old"))
    it.hears(known(uid=PodUID("new")), source=FILE_SOURCE)
    it.runs("c2", uid=PodUID("new"))


def _an_object_is_deleted_while_its_pod_runs(it: Stage) -> None:
    it.runs("c1")
    it.publishes(going(known()), None)


# I7: what runs again, and what is lost.


def _what_runs_once_runs_twice(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 1)
    it.again(pod("job", policy="Never"), "c2")


def _what_succeeded_runs_again(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 0)
    it.again(pod("job", policy="OnFailure"), "c2")


def _what_succeeded_runs_again_in_another_sandbox(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 0)
    it.again(pod("job", policy="OnFailure"), "c2", sandbox="s2")


def _an_init_container_succeeds_twice_in_one_sandbox(it: Stage) -> None:
    it.runs("c1", "init")
    it.ends("c1", 0, "init")
    it.again(pod("web", init=(container("init"),)), "c2", name="init")


def _a_pod_that_runs_once_is_initialised_again(it: Stage) -> None:
    it.runs("c1", "init")
    it.ends("c1", 0, "init")
    it.again(pod("web", init=(container("init"),), policy="Never"), "c2", name="init", sandbox="s2")


def _a_disk_lost_the_note_of_an_end(it: Stage, *, removed: bool) -> Pod:
    """An agent ended a pod with a debugger, and could not note that. An old list names the pod to the next agent."""
    web = pod("web")
    debugger = EphemeralContainer(name="debugger", image="debug:v1")
    debugged = known(replace(web, spec=replace(web.spec, ephemeral_containers=(debugger,))))
    it.hears(debugged)
    it.runs("c1", "debugger")
    it.ends("c1", 0, "debugger")
    it.world.journal.disk_full = True
    it.hears(debugged, op=Op.REMOVE)
    if removed:
        it.is_removed("c1", "debugger")
    it.dies()
    it.hears(debugged)
    return debugged


def _a_debugger_runs_again_beside_its_dead_container(it: Stage) -> None:
    it.again(_a_disk_lost_the_note_of_an_end(it, removed=False), "c2", name="debugger", sandbox="s2")


def _a_debugger_runs_again_that_the_api_shows(it: Stage) -> None:
    debugged = _a_disk_lost_the_note_of_an_end(it, removed=True)
    status = PodStatus(ephemeral_container_statuses=(ContainerStatus(name="debugger"),))
    it.world.api.put(replace(debugged, status=status))
    it.again(debugged, "c2", 0, name="debugger", sandbox="s2")


def _an_exit_code_is_lost_with_the_object(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 3)
    it.publishes(going(known(container_statuses=(said(exit_code=137),))), None)


def _a_restart_is_lost_with_the_object(it: Stage) -> None:
    it.runs("c1", restart_count=2)
    it.ends("c1", 3)
    it.publishes(going(known(container_statuses=(said(id_="c1", exit_code=3, restarts=1),))), None)


# I12: what starts after its end.


def _a_start_after_the_deletion_a_former_life_heard_of(it: Stage) -> None:
    it.hears(known())
    it.hears(going(known()), op=Op.UPDATE)
    it.dies()
    it.hears(known())  # a list from before
    it.calls("run_sandbox")


def _a_start_after_the_removal_a_former_life_heard_of(it: Stage) -> None:
    it.hears(known())
    it.hears(known(), op=Op.REMOVE)
    it.dies()
    it.hears(known())
    config = ContainerConfig(pod=known(), container=container(), attempt=0, image="", spec_hash="")
    it.calls("create_container", "s1", config)


def _a_start_after_the_end_was_published(it: Stage) -> None:
    it.hears(known())
    it.publishes(known(phase="Running"), known(phase="Failed"))
    it.calls("start_container", "c1")


def _a_start_of_a_static_pod_that_is_named_no_more(it: Stage) -> None:
    it.hears(known(), source=FILE_SOURCE)
    it.hears(source=FILE_SOURCE)
    it.dies()
    it.calls("run_sandbox")


# I5: graces.


def _a_stop_gets_longer_than_the_grace(it: Stage) -> None:
    it.hears(known(pod("web", grace=5)))
    it.runs("c1")
    it.calls("stop_container", "c1", 10)


def _a_hook_and_a_stop_get_a_grace_each(it: Stage) -> None:
    it.hears(known(pod("web", container(pre_stop="bye"), grace=10)))
    it.runs("c1")
    it.runs_hook("c1", "bye", begun=it.at - 6)
    it.calls("stop_container", "c1", 10)


def _a_late_loop_still_uses_the_old_grace(it: Stage) -> None:
    it.world.troubles.begin(it.at, "dawdle")
    it.hears(known(pod("web", grace=30)))
    it.runs("c1")
    it.hears(going(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    it.at += 11
    it.calls("stop_container", "c1", 30)


def _a_grace_that_was_shortened_long_ago_is_granted_again(it: Stage) -> None:
    it.hears(known(pod("web", grace=30)))
    it.runs("c1")
    it.hears(going(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    it.world.troubles.moment(it.at, "slow-calls", UID)  # of this pod only: nobody's news wait for that
    it.at += 60
    it.calls("stop_container", "c1", 30)


def _a_kill_is_put_off(it: Stage) -> None:
    it.hears(known(pod("web", grace=60)))
    it.runs("c1")
    it.calls("stop_container", "c1", 30)
    it.at += 10
    it.calls("stop_container", "c1", 30)


# I18: what is published of containers that run.


def _both_run(it: Stage) -> Pod:
    it.runs("c1")
    it.runs("c2", "beside")
    return known(container_statuses=(said(id_="c1"), said("beside", id_="c2")))


def _a_running_sibling_is_published_as_waiting(it: Stage) -> None:
    waiting = replace(said("beside"), state=ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating")))
    it.publishes(_both_run(it), known(container_statuses=(said(id_="c1"), waiting)))


def _a_running_sibling_is_no_longer_published(it: Stage) -> None:
    it.publishes(_both_run(it), known(container_statuses=(said(id_="c1"),)))


def _a_running_container_is_published_with_the_id_of_its_predecessor(it: Stage) -> None:
    it.runs("c0", "beside")
    it.ends("c0", 1, "beside")
    it.publishes(_both_run(it), known(container_statuses=(said(id_="c1"), said("beside", id_="c0"))))


# I19: probes.

PROBED = pod("web", container(ready=exec_probe()))


def _a_probe_is_executed_twice_at_a_time(it: Stage) -> None:
    it.hears(known(PROBED))
    it.at = 10.0
    it.runs_hook("c1", "check", begun=8.0)
    it.at = 11.0
    it.runs_hook("c1", "check", begun=9.0)


# I21: what a pod needs.


def _the_volumes_of_a_running_container_are_unmounted(it: Stage) -> None:
    it.runs("c1")
    it.removes("volumes", "unmount")


def _the_cgroup_of_a_running_container_is_removed(it: Stage) -> None:
    it.runs("c1")
    it.removes("cgroups", "remove")


# I22: storms.


def _a_pod_is_inspected_in_a_storm(it: Stage) -> None:
    for number in range(MOST_PER_OBJECT + 1):
        it.at = 60.0 + number / 10
        it.calls("pod_record")


def _a_container_is_removed_in_a_storm(it: Stage) -> None:
    for _ in range(MOST_PER_OBJECT + 1):
        it.calls("remove_container", "c1")


def _the_runtime_is_listed_in_a_storm(it: Stage) -> None:
    for _ in range(MOST_OF_NODE + 1):
        it.calls("list_pods", uid=PodUID(""))


BROKEN: dict[str, tuple[str, Callable[[Stage], None]]] = {
    "a finished pod runs again": ("I1", _a_finished_pod_runs_again),
    "a pod that runs is called Failed": ("I1", _a_pod_that_runs_is_called_failed),
    "a failed pod succeeds after all": ("I1", _a_failed_pod_succeeds_after_all),
    "a mirror takes back the end of its pod": ("I1", _a_mirror_takes_back_the_end_of_its_pod),
    "a restart count falls": ("I13", _a_restart_count_falls),
    "success of a container that never was": ("I2", _success_of_a_container_that_never_was),
    "success of a container that failed": ("I2", _success_of_a_container_that_failed),
    "success of a container that still runs": ("I2", _success_of_a_container_that_still_runs),
    "another exit code than the true one": ("I2", _another_exit_code_than_the_true_one),
    "success of an init container that nobody saw run": ("I2", _success_of_an_init_container_that_nobody_saw_run),
    "success of a pod whose last run failed": ("I2", _success_of_a_pod_whose_last_run_failed),
    "success in a last state that is another pod's": ("I2", _success_in_a_last_state_that_is_another_pods),
    "a container lives twice": ("I3", _a_container_lives_twice),
    "an agent creates again what it has started": ("I3", _an_agent_creates_again_what_it_has_started),
    "a pod has two sandboxes": ("I3", _a_pod_has_two_sandboxes),
    "a static pod starts before its predecessor is gone": ("I3", _a_static_pod_starts_before_its_predecessor_is_gone),
    "an object is deleted while its pod runs": ("I4", _an_object_is_deleted_while_its_pod_runs),
    "a stop gets longer than the grace": ("I5", _a_stop_gets_longer_than_the_grace),
    "a hook and a stop get a grace each": ("I5", _a_hook_and_a_stop_get_a_grace_each),
    "a kill is put off": ("I5", _a_kill_is_put_off),
    "a shortened grace is granted again": ("I5", _a_grace_that_was_shortened_long_ago_is_granted_again),
    "a shortened grace is granted again by a late loop": ("I5", _a_late_loop_still_uses_the_old_grace),
    "what runs once runs twice": ("I7", _what_runs_once_runs_twice),
    "what succeeded runs again": ("I7", _what_succeeded_runs_again),
    "what succeeded runs again in another sandbox": ("I7", _what_succeeded_runs_again_in_another_sandbox),
    "an init container succeeds twice in one sandbox": ("I7", _an_init_container_succeeds_twice_in_one_sandbox),
    "a pod that runs once is initialised again": ("I7", _a_pod_that_runs_once_is_initialised_again),
    "a debugger runs again that the API shows": ("I7", _a_debugger_runs_again_that_the_api_shows),
    "a debugger runs again beside its dead container": ("I7", _a_debugger_runs_again_beside_its_dead_container),
    "an exit code is lost with the object": ("I7", _an_exit_code_is_lost_with_the_object),
    "a restart is lost with the object": ("I7", _a_restart_is_lost_with_the_object),
    "a start after a deletion heard in a former life": ("I12", _a_start_after_the_deletion_a_former_life_heard_of),
    "a start after a removal heard in a former life": ("I12", _a_start_after_the_removal_a_former_life_heard_of),
    "a start after the end was published": ("I12", _a_start_after_the_end_was_published),
    "a start of a static pod that is named no more": ("I12", _a_start_of_a_static_pod_that_is_named_no_more),
    "a running sibling is published as waiting": ("I18", _a_running_sibling_is_published_as_waiting),
    "a running sibling is no longer published": ("I18", _a_running_sibling_is_no_longer_published),
    "a running container is published with the id of its predecessor": (
        "I18",
        _a_running_container_is_published_with_the_id_of_its_predecessor,
    ),
    "a probe is executed twice at a time": ("I19", _a_probe_is_executed_twice_at_a_time),
    "the volumes of a running container are unmounted": ("I21", _the_volumes_of_a_running_container_are_unmounted),
    "the cgroup of a running container is removed": ("I21", _the_cgroup_of_a_running_container_is_removed),
    "a pod is inspected in a storm": ("I22", _a_pod_is_inspected_in_a_storm),
    "a container is removed in a storm": ("I22", _a_container_is_removed_in_a_storm),
    "the runtime is listed in a storm": ("I22", _the_runtime_is_listed_in_a_storm),
}


@pytest.mark.parametrize(("invariant", "misdeed"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_promise_is_seen_at_once(stage: Stage, invariant: str, misdeed: Callable[[Stage], None]) -> None:
    misdeed(stage)
    assert stage.broken == invariant


# What is right.


def _an_agent_creates_what_another_agent_started_late(it: Stage) -> None:
    it.runs("c1")
    it.starts("c1")
    it.dies()
    it.creates(known(), attempt=0)  # the runtime refuses it: the start took effect after this agent's inspection


def _a_user_does_what_the_agent_may_not(it: Stage) -> None:
    it.runs("c1")
    it.publishes(known(phase="Failed"), known(phase="Running", container_statuses=(said(exit_code=0),)), by=0)
    it.publishes(going(known()), None, by=0)  # a force delete


def _a_mirror_shows_the_successor_of_its_pod(it: Stage) -> None:
    it.hears(known(uid=PodUID("old")), source=FILE_SOURCE)
    it.runs("c1", uid=PodUID("old"), restart_count=4)
    it.ends("c1", 1, uid=PodUID("old"))
    it.hears(known(uid=PodUID("new")), source=FILE_SOURCE)
    it.runs("c2", uid=PodUID("new"))
    over = mirror("m1", "old", phase="Failed", container_statuses=(said(id_="c1", exit_code=1, restarts=4),))
    it.publishes(over, mirror("m1", "old", phase="Running", container_statuses=(said(id_="c2"),)))
    it.publishes(mirror("m1", "old"), None)


def _an_end_that_nobody_saw_is_told_as_unknown(it: Stage) -> None:
    it.publishes(known(), known(container_statuses=(said(exit_code=137),)))


def _the_last_end_stands_behind_a_container_that_never_started(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 3)
    unstarted = ContainerRecord(id="c2", name="app", state=RuntimeState.CREATED, restart_count=1)
    it.world.bus.tell(ContainerChanged(it.at, UID, unstarted, RuntimeEventType.CREATED))
    last = said(id_="c1", exit_code=3).state
    it.publishes(going(known(container_statuses=(replace(said(exit_code=137, restarts=1), last_state=last),))), None)


def _each_of_many_dead_containers_is_removed_at_every_housekeeping(it: Stage) -> None:
    for number in range(30):
        it.at = 2.0 * number
        for dead in range(10):
            it.calls("remove_container", f"c{dead}")


def _what_failed_runs_again(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1", 1)
    it.again(pod("job", policy="OnFailure"), "c2")


def _what_a_probe_had_stopped_runs_again_though_it_left_with_success(it: Stage) -> None:
    it.runs("c1")
    it.calls("stop_container", "c1", 2)
    it.ends("c1", 0)
    it.again(pod("job", policy="OnFailure"), "c2")


def _what_runs_once_runs_anew_when_its_image_changes(it: Stage) -> None:
    it.runs("c1", spec_hash="old")
    it.calls("stop_container", "c1", 2)
    it.ends("c1", 0)
    it.again(pod("job", policy="Never"), "c2")


def _a_debugger_runs_again_after_its_first_run_left_no_trace(it: Stage) -> None:
    it.again(_a_disk_lost_the_note_of_an_end(it, removed=True), "c2", 0, name="debugger", sandbox="s2")


def _an_init_container_runs_again_in_a_new_sandbox(it: Stage) -> None:
    it.runs("c1", "init")
    it.ends("c1", 0, "init")
    it.again(pod("web", init=(container("init"),)), "c2", name="init", sandbox="s2")


def _a_static_pod_that_comes_back_begins_anew(it: Stage) -> None:
    once = known(pod("job", policy="Never"))
    it.hears(once, source=FILE_SOURCE)
    it.again(once, "c1", 0)
    it.ends("c1", 1)
    it.hears(source=FILE_SOURCE)
    it.at += 1
    it.hears(once, source=FILE_SOURCE)
    it.again(once, "c2", 1)


def _a_list_from_before_a_pod_was_made_is_no_end(it: Stage) -> None:
    there = it.world.api.put(pod("web"))
    it.hears(there)
    it.dies()
    it.hears()
    it.hears(there, op=Op.ADD)
    it.calls("run_sandbox", uid=PodUID(there.metadata.uid or ""))


def _a_grace_shrinks(it: Stage) -> None:
    it.hears(known(pod("web", container(pre_stop="bye"), grace=60)))
    it.runs("c1")
    it.runs_hook("c1", "bye", begun=it.at - 20)
    it.calls("stop_container", "c1", 40)
    it.calls("stop_container", "c1", 2)


def _a_stop_with_the_old_grace_comes_late(it: Stage) -> None:
    it.hears(known(pod("web", grace=10)))
    it.runs("c1")
    it.hears(going(known(pod("web", grace=10)), grace=60), op=Op.UPDATE)
    it.hears(going(known(pod("web", grace=10)), grace=2), op=Op.UPDATE)
    it.calls("stop_container", "c1", 2)
    it.at += 1
    it.calls("stop_container", "c1", 60)


def _a_stop_comes_a_late_wake_up_after_its_hook(it: Stage) -> None:
    it.hears(known(pod("web", container(pre_stop="bye"), grace=5)))
    it.runs("c1")
    it.world.troubles.begin(it.at, "dawdle")
    it.runs_hook("c1", "bye", begun=it.at)
    it.at += 1.5
    it.calls("stop_container", "c1", 5)


def _news_wait_until_the_runtime_is_well(it: Stage) -> None:
    it.hears(known(pod("web", grace=30)))
    it.runs("c1")
    it.hears(going(known(pod("web", grace=30)), grace=30), op=Op.UPDATE)
    it.hears(going(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    slow = it.world.troubles.begin(it.at, "slow-calls")
    it.at += 60
    it.world.troubles.end(it.at, slow)
    it.calls("stop_container", "c1", 30)
    it.calls("stop_container", "c1", 2)


def _updates_are_handled_late_after_the_runtime_recovers(it: Stage) -> None:
    """Seed 545: the loop checks an unhealthy runtime every 5 s at most, and this wake-up came late."""
    it.hears(known(pod("web", grace=30)))
    it.runs("c1")
    it.hears(going(known(pod("web", grace=30)), grace=1), op=Op.UPDATE)
    it.world.troubles.end(it.at, it.world.troubles.begin(it.at, "runtime-errors"))
    it.world.troubles.begin(it.at, "dawdle")
    it.at += 7
    it.calls("stop_container", "c1", 30)


def _a_new_life_grants_a_new_grace(it: Stage) -> None:
    it.hears(known(pod("web", grace=60)))
    it.runs("c1")
    it.calls("stop_container", "c1", 5)
    it.dies()
    it.calls("stop_container", "c1", 60)


def _a_container_that_ended_is_published_as_waiting(it: Stage) -> None:
    before = _both_run(it)
    it.ends("c2", 1, "beside")
    it.publishes(before, known(container_statuses=(said(id_="c1"), replace(said("beside"), state=ContainerState()))))


def _a_mirror_shows_the_successor_while_its_pod_still_runs(it: Stage) -> None:
    it.hears(known(), source=FILE_SOURCE)
    it.runs("c1")
    it.hears(known(uid=PodUID("new")), source=FILE_SOURCE)
    waiting = replace(said(), state=ContainerState())
    it.publishes(
        mirror("m1", UID, container_statuses=(said(id_="c1"),)), mirror("m1", UID, container_statuses=(waiting,))
    )


def _a_probe_is_executed_again_after_its_end(it: Stage) -> None:
    it.hears(known(PROBED))
    it.at = 10.0
    it.runs_hook("c1", "check", begun=8.0)
    it.at = 12.0
    it.runs_hook("c1", "check", begun=10.0)


def _the_probes_of_two_runs_and_of_two_agents_overlap(it: Stage) -> None:
    it.hears(known(PROBED))
    it.at = 10.0
    it.runs_hook("c1", "check", begun=8.0)
    it.runs_hook("c2", "check", begun=9.0)
    it.dies()
    it.runs_hook("c2", "check", begun=9.5)


def _a_hook_is_executed_twice_at_a_time(it: Stage) -> None:
    it.hears(known(PROBED))
    it.at = 10.0
    it.runs_hook("c1", "bye", begun=8.0)
    it.runs_hook("c1", "bye", begun=9.0)


def _the_ground_of_a_pod_that_has_ended_is_removed(it: Stage) -> None:
    it.runs("c1")
    it.ends("c1")
    it.removes("volumes", "unmount")
    it.removes("cgroups", "remove")


def _the_cgroup_of_a_container_is_removed_whose_start_was_never_answered(it: Stage) -> None:
    it.world.troubles.moment(it.at, "lost-answers", UID)
    it.runs("c1")
    it.removes("cgroups", "remove")


def _a_pod_is_inspected_every_second(it: Stage) -> None:
    for number in range(3 * MOST_PER_OBJECT):
        it.at = float(number)
        it.calls("pod_record")


RIGHT: dict[str, Callable[[Stage], None]] = {
    "an agent creates what another agent started late": _an_agent_creates_what_another_agent_started_late,
    "a user does what the agent may not": _a_user_does_what_the_agent_may_not,
    "a mirror shows the successor of its pod": _a_mirror_shows_the_successor_of_its_pod,
    "an end that nobody saw is told as unknown": _an_end_that_nobody_saw_is_told_as_unknown,
    "the last end stands behind what never started": _the_last_end_stands_behind_a_container_that_never_started,
    "each of many dead containers is removed at every housekeeping": (
        _each_of_many_dead_containers_is_removed_at_every_housekeeping
    ),
    "what failed runs again": _what_failed_runs_again,
    "what a probe had stopped runs again": _what_a_probe_had_stopped_runs_again_though_it_left_with_success,
    "what runs once runs anew when its image changes": _what_runs_once_runs_anew_when_its_image_changes,
    "a debugger runs again after its first run left no trace": (
        _a_debugger_runs_again_after_its_first_run_left_no_trace
    ),
    "an init container runs again in a new sandbox": _an_init_container_runs_again_in_a_new_sandbox,
    "a static pod that comes back begins anew": _a_static_pod_that_comes_back_begins_anew,
    "a list from before a pod was made is no end": _a_list_from_before_a_pod_was_made_is_no_end,
    "a grace shrinks": _a_grace_shrinks,
    "a stop with the old grace comes late": _a_stop_with_the_old_grace_comes_late,
    "news are taken up late after the runtime is well": _updates_are_handled_late_after_the_runtime_recovers,
    "a new life grants a new grace": _a_new_life_grants_a_new_grace,
    "a stop comes a late wake-up after its hook": _a_stop_comes_a_late_wake_up_after_its_hook,
    "news wait until the runtime is well": _news_wait_until_the_runtime_is_well,
    "a container that ended is published as waiting": _a_container_that_ended_is_published_as_waiting,
    "a mirror shows the successor while its pod still runs": _a_mirror_shows_the_successor_while_its_pod_still_runs,
    "a probe is executed again after its end": _a_probe_is_executed_again_after_its_end,
    "the probes of two runs and of two agents overlap": _the_probes_of_two_runs_and_of_two_agents_overlap,
    "a hook is executed twice at a time": _a_hook_is_executed_twice_at_a_time,
    "the ground of a pod that has ended is removed": _the_ground_of_a_pod_that_has_ended_is_removed,
    "the cgroup of a container is removed whose start was never answered": (
        _the_cgroup_of_a_container_is_removed_whose_start_was_never_answered
    ),
    "a pod is inspected every second": _a_pod_is_inspected_every_second,
}


@pytest.mark.parametrize("deed", RIGHT.values(), ids=RIGHT.keys())
def test_what_is_right_is_let_be(stage: Stage, deed: Callable[[Stage], None]) -> None:
    deed(stage)
    assert stage.world.violation is None


# What takes time, and what only a living agent knows.


def test_a_pod_that_outlives_the_grace_of_its_deletion_is_seen() -> None:
    world = World(0)

    async def story() -> None:
        it = Stage(world)
        it.at = world.now()
        it.runs("c1")
        it.hears(going(known(), grace=10))
        await asyncio.sleep(60)

    violation = world.play(story).violation
    assert violation is not None
    assert (violation.invariant, violation.at) == ("I5", 15.0)


def test_a_shortened_grace_counts_from_when_it_was_told() -> None:
    world = World(0)

    async def story() -> None:
        it = Stage(world)
        it.at = world.now()
        it.runs("c1")
        it.hears(going(known(), grace=600))
        await asyncio.sleep(20)
        it.at = world.now()
        it.hears(going(known(), grace=3))
        await asyncio.sleep(60)

    violation = world.play(story).violation
    assert violation is not None
    assert (violation.invariant, violation.at) == ("I5", 28.0)


def test_trouble_and_death_excuse_a_late_end() -> None:
    world = World(0)

    async def story() -> None:
        it = Stage(world)
        it.at = world.now()
        it.runs("c1")
        it.runs("c2", uid=PodUID("u2"))
        it.hears(going(known(), grace=10), op=Op.UPDATE)
        it.hears(going(known(uid=PodUID("u2")), grace=30), op=Op.UPDATE)
        world.troubles.moment(world.now(), "hung-calls", UID)
        await asyncio.sleep(20)
        it.dies()
        await asyncio.sleep(60)

    assert world.play(story).violation is None


def test_what_starts_in_a_pod_whose_worker_ends_it_is_seen() -> None:
    world = World(0)

    async def story() -> None:
        it = Stage(world)
        uid = PodUID(world.api.put(pod("web", app=Behaviour(term_seconds=None))).metadata.uid or "")
        await asyncio.sleep(5)
        world.api.mark_deleted(Pod, "web", "default")
        await asyncio.sleep(5)
        it.calls("start_container", "c9", uid=uid)

    violation = world.play(story).violation
    assert violation is not None
    assert violation.invariant == "I12"


def test_what_the_runtime_complains_of_is_seen() -> None:
    world = World(0)

    async def story() -> None:
        Stage(world)
        uid = PodUID(world.api.put(pod("web")).metadata.uid or "")
        await asyncio.sleep(5)
        live = next(life for life in world.truth.all_running() if life.uid == uid)
        spec = world.api.peek(Pod, "web", "default") or pod("web")
        config = ContainerConfig(pod=spec, container=spec.spec.containers[0], attempt=1, image=live.image, spec_hash="")
        await world.runtime.start_container(await world.runtime.create_container(live.sandbox_id, config))

    violation = world.play(story).violation
    assert violation is not None
    assert violation.invariant == "I3"


# What the invariants found in the engine.


def test_an_evicted_pod_keeps_its_exit_codes() -> None:
    """Its dead containers were removed before anybody had looked how they ended: all of it told as unknown."""
    world = World(0)
    watch(world)

    async def story() -> None:
        world.api.put(pod("web", app=Behaviour(term_exit_code=7)))
        await asyncio.sleep(5)
        assert world.agent is not None
        evicted = world.agent.manager.pod_by_full_name("web_default")
        assert evicted is not None
        await world.agent.workers.kill_pod(evicted, evict=True)
        world.api.mark_deleted(Pod, "web", "default")
        await asyncio.sleep(30)

    assert world.play(story).violation is None
    assert world.checks["I7"] > 0
    assert world.api.peek(Pod, "web", "default") is None


def test_a_list_older_than_what_a_former_life_saw_starts_nothing() -> None:
    """A restarted agent asked a server that was behind, and ran pods again that were long deleted (as Sieve found)."""
    world = World(0)
    watch(world)

    async def story() -> None:
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

    assert world.play(story).violation is None
    assert not list(world.truth.all_running())


def test_a_note_that_a_full_disk_refused_to_replace_takes_nothing_back() -> None:
    """After the restart the old note was sent over what the API had been told meanwhile: a restart was taken back."""
    world = World(0)
    watch(world)

    def restarts() -> int:
        found = world.api.peek(Pod, "web", "default")
        assert found is not None
        return sum(each.restart_count for each in found.status.container_statuses or ())

    async def story() -> None:
        world.api.put(pod("web"))
        await asyncio.sleep(5)
        (live,) = world.truth.all_running()
        world.journal.disk_full = True
        world.runtime.end_container(live.uid, "app", 1)
        await asyncio.sleep(30)
        assert restarts() == 1
        world.runtime.go_down()  # so that nobody can look how it really is
        world.crash()
        await asyncio.sleep(40)
        world.journal.disk_full = False
        world.runtime.come_up()
        await asyncio.sleep(60)

    assert world.play(story).violation is None
    assert restarts() == 1


def test_a_static_pod_named_again_while_it_ends_goes_on_counting_its_restarts() -> None:
    """Its status was forgotten as nobody's while it still ended: its mirror then told fewer restarts than before."""
    world = World(0)
    watch(world)
    place, manifest = "/etc/podkeeper/stat.yaml", pod("stat", grace=20, app=Behaviour(term_seconds=None))

    async def replaced_for(seconds: float) -> None:
        world.files.write(place, pod("stat", container(image="app:v2"), grace=20))
        await asyncio.sleep(seconds)
        world.files.write(place, manifest)
        await asyncio.sleep(20.1 - seconds)  # it has just ended

    async def story() -> None:
        (static,) = world.files.write(place, manifest)
        await asyncio.sleep(5)
        await replaced_for(0.1)
        for life in world.truth.of_pod(PodUID(static.metadata.uid or "")):
            await world.runtime.remove_container(life.id)  # with it goes the runtime's count
        await asyncio.sleep(60)
        await replaced_for(10)
        await asyncio.sleep(60)

    assert world.play(story).violation is None
    assert world.checks["I13"] > 0


def test_a_container_made_late_by_a_dead_agents_call_does_not_hide_the_one_that_runs() -> None:
    """It passed for the newest, so the one that ran was taken for gone and started a second time."""
    world = World(0)
    watch(world)

    async def story() -> None:
        world.api.put(pod("web", app=Behaviour(after_seconds=5, exit_code=1, crashes=2)))
        await asyncio.sleep(60)
        (live,) = world.truth.all_running()
        assert live.attempt == 2  # and the first one is garbage-collected
        spec = world.api.peek(Pod, "web", "default") or pod("web")
        config = ContainerConfig(pod=spec, container=spec.spec.containers[0], attempt=0, image=live.image, spec_hash="")
        await world.runtime.create_container(live.sandbox_id, config)
        await asyncio.sleep(120)
        assert live.running

    assert world.play(story).violation is None


# I20: static pods that come back.


def test_a_static_pod_that_is_named_again_and_never_runs_is_seen() -> None:
    world = World(0)
    watch(world)
    ghost = known(pod("ghost"), PodUID("ghost"))

    async def story() -> None:
        await asyncio.sleep(5)
        for pods in ((ghost,), (), (ghost,)):  # as if the source said so; the agent is not told
            world.bus.tell(Told(world.now(), 1, PodUpdate(Op.SET, pods, FILE_SOURCE)))
        await asyncio.sleep(600)

    violation = world.play(story).violation
    assert violation is not None
    assert (violation.invariant, violation.uid) == ("I20", "ghost")
    assert 5 + PATIENCE_SECONDS < violation.at < 5 + 2 * PATIENCE_SECONDS


@pytest.mark.parametrize("gone_seconds", [0.1, 5.0, 40.0])
def test_a_static_pod_that_is_named_again_runs_again(gone_seconds: float) -> None:
    world = World(0)
    watch(world)
    place, manifest = "/etc/podkeeper/stat.yaml", pod("stat", grace=20, app=Behaviour(term_seconds=None))

    async def story() -> None:
        world.files.write(place, manifest)
        await asyncio.sleep(10)
        world.files.erase(place)
        await asyncio.sleep(gone_seconds)
        world.files.write(place, manifest)
        await asyncio.sleep(200)

    assert world.play(story).violation is None
    assert world.checks["I20"] == 1


def test_a_static_pod_that_is_named_again_may_wait_for_the_rest_of_its_backoff() -> None:
    """Seed 395: the invariant waited for 60 s, and a crash loop waits for up to five minutes."""
    world = World(0)
    watch(world)
    place, manifest = "/etc/podkeeper/stat.yaml", pod("stat", app=Behaviour(after_seconds=1, exit_code=1))

    async def story() -> None:
        (made,) = world.files.write(place, manifest)
        uid = PodUID(made.metadata.uid or "")
        await asyncio.sleep(180)
        before = len(world.truth.attempts(uid, "app"))
        world.files.erase(place)
        await asyncio.sleep(0.5)
        world.files.write(place, manifest)
        await asyncio.sleep(2 * PATIENCE_SECONDS)
        assert len(world.truth.attempts(uid, "app")) == before, "its backoff is not over"
        await asyncio.sleep(300)

    assert world.play(story).violation is None
    assert world.checks["I20"] == 1


def test_a_static_pod_that_is_named_again_runs_again_though_the_api_has_not_answered() -> None:
    world = World(0)
    watch(world)
    place, manifest = "/etc/podkeeper/stat.yaml", pod("stat", grace=20, app=Behaviour(term_seconds=None))

    async def story() -> None:
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

    assert world.play(story).violation is None


# Two hours in which nothing is wrong but the agent's health.


def _pods(number: int) -> Iterable[Pod]:
    """One of each kind."""
    name = f"pod-{number}"
    yield pod(f"{name}-web", container(ready=exec_probe()))
    yield pod(f"{name}-crashes", app=Behaviour(after_seconds=5, exit_code=1, crashes=3))
    yield pod(f"{name}-again", policy="OnFailure", app=Behaviour(after_seconds=20, exit_code=1, crashes=2))
    yield pod(f"{name}-once", policy="Never", app=Behaviour(after_seconds=30, exit_code=number % 2))
    yield pod(
        f"{name}-init",
        init=(container("first"), container("side", restart="Always"), container("second")),
        policy="OnFailure",
        first=Behaviour(after_seconds=3),
        second=Behaviour(after_seconds=2, exit_code=1, crashes=1),
        side=Behaviour(term_seconds=None),
        app=Behaviour(after_seconds=40),
    )
    bye = Behaviour(exec=(ExecStep(takes_seconds=(1, 8, 100)[number % 3]),), term_seconds=None)
    yield pod(f"{name}-hook", container(pre_stop="bye"), grace=10, app=bye)
    sick = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=60, exit_code=1)), term_seconds=2)
    yield pod(f"{name}-sick", container(live=exec_probe(period=5)), app=sick)


async def _two_hours(world: World) -> None:
    chance = world.random("story")
    for number in range(8):
        names = [world.api.put(each).metadata.name or "" for each in _pods(number)]
        world.files.write("/etc/podkeeper/stat.yaml", pod("stat", container(image=f"app:{number % 3}"), grace=5))
        await asyncio.sleep(chance.uniform(20, 100))
        world.crash(away_seconds=chance.uniform(0.5, 20))
        await asyncio.sleep(chance.uniform(30, 100))
        for name in names:
            for grace in chance.choice([(None,), (None, 2), (60, 1)]):
                with suppress(NotFound):
                    world.api.mark_deleted(Pod, name, "default", grace_seconds=grace)
                await asyncio.sleep(chance.uniform(0, 5))
        if number % 2:
            world.files.erase("/etc/podkeeper/stat.yaml")
        await asyncio.sleep(max(0.0, 900.0 * (number + 1) - world.now()))


def test_a_healthy_node_breaks_nothing_and_puts_everything_to_the_test() -> None:
    world = World(7)
    watch(world)
    logging.disable(logging.ERROR)
    try:
        verdict = world.play(lambda: _two_hours(world))
    finally:
        logging.disable(logging.NOTSET)
    assert verdict.violation is None
    assert verdict.seconds >= 7200
    assert verdict.lives == 9
    assert [each for each in AT_ONCE if not verdict.checks[each]] == []


def test_every_invariant_has_its_line() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 23)]
    assert all(INVARIANTS.values())
