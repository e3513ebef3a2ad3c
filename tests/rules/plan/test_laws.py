"""Laws of the plan: they hold for every pod, history and probe result."""

from dataclasses import dataclass, replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from podkeeper.model.k8s.core import Container, Pod, Probe
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.container.restart import is_sidecar, restarts_after_exit
from podkeeper.rules.plan import compute_pod_actions
from podkeeper.rules.plan.actions import PodActions
from podkeeper.testing.build import container
from tests.rules.plan.planning import CREATED, DEAD_SANDBOX, EXITED, RUNNING, SANDBOX, UNKNOWN, debug, pod, ran

FAILURE = ProbeResult.FAILURE

ContainerHistory = tuple[tuple[tuple[RecordState, int], ...], bool, ProbeResult | None, ProbeResult | None]


@dataclass(frozen=True)
class Situation:
    pod: Pod
    record: PodRecord
    liveness: dict[str, ProbeResult]
    startup: dict[str, ProbeResult]
    restart_all: bool

    def plan(self) -> PodActions:
        return compute_pod_actions(
            self.pod, self.record, self.liveness, self.startup, restart_all_containers=self.restart_all
        )

    def started(self, actions: PodActions) -> list[Container]:
        """Return the init and app containers that a plan starts."""
        init = self.pod.spec.init_containers or ()
        return [init[index] for index in actions.init_containers_to_start] + [
            self.pod.spec.containers[index] for index in actions.containers_to_start
        ]


# One draw per container for what it is, one for what became of it: few draws keep thousands of examples cheap.

POLICIES = [None, "Always", "OnFailure", "Never"]
RULES = [None, "Restart", "RestartAllContainers"]
SPECS = {
    name: [
        container(
            name,
            restart_policy=policy,
            liveness=Probe() if probed else None,
            startup=Probe() if probed else None,
            restart_rule=None if rule is None else (rule, 42),
        )
        for policy, probed, rule in product(POLICIES, [False, True], RULES)
    ]
    for name in ("i0", "i1", "i2", "a0", "a1", "a2", "d0")
}
RESULTS: list[ProbeResult | None] = [None, ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN]
PAST: list[tuple[tuple[RecordState, int], ...]] = [(), ((EXITED, 1),), ((EXITED, 0),)]
PRESENT = [(RUNNING, 0), (EXITED, 0), (EXITED, 1), (EXITED, 42), (CREATED, 0), (UNKNOWN, 0)]
HISTORIES = [(), (), *((present, *past) for present, past in product(PRESENT, PAST))]
FATES: list[ContainerHistory] = list(product(HISTORIES, [False, False, True], RESULTS, RESULTS))
"""(states newest first, whether the spec has changed since, liveness, startup) of the newest container."""
SANDBOXES = [(SANDBOX,), (SANDBOX,), (SANDBOX,), (DEAD_SANDBOX,), (), (SANDBOX, changed(SANDBOX, id="older"))]


def records_of(spec: Container, fate: ContainerHistory) -> list[ContainerRecord]:
    """The records of a container, newest first."""
    states, changed, _, _ = fate
    return [
        ran(spec, state, code, changed=changed and age == 0, run=len(states) - age - 1)
        for age, (state, code) in enumerate(states)
    ]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    shape = draw(st.sampled_from(list(product(range(4), range(4), range(2)))))
    names = [f"{kind}{index}" for kind, count in zip("iad", shape, strict=True) for index in range(count)]
    specs = {name: draw(st.sampled_from(SPECS[name])) for name in names}
    fates = {name: draw(st.sampled_from(FATES)) for name in names}
    policy, deleting = draw(st.sampled_from(list(product(POLICIES, [False, False, True]))))
    init, apps = ([spec for name, spec in specs.items() if name.startswith(kind)] for kind in "ia")
    histories = {name: records_of(specs[name], fates[name]) for name in names}
    newest = [(records[0].id, fates[name]) for name, records in histories.items() if records]
    return Situation(
        pod(
            init=tuple(init),
            policy=policy,
            debug=debug("d0") if "d0" in specs else (),
            deleted=deleting,
            spec={"containers": tuple(apps)},
        ),
        PodRecord(
            uid="uid",
            sandboxes=draw(st.sampled_from(SANDBOXES)),
            containers=tuple(record for records in histories.values() for record in records),
        ),
        liveness={identity: liveness for identity, (_, _, liveness, _) in newest if liveness is not None},
        startup={identity: startup for identity, (_, _, _, startup) in newest if startup is not None},
        restart_all=draw(st.integers(0, 9)) == 0,
    )


law = settings(max_examples=75)


@law
@given(situations())
def test_indexes_are_in_range_in_order_and_unique(situation: Situation) -> None:
    actions, spec = situation.plan(), situation.pod.spec
    for indexes, listed in [
        (actions.init_containers_to_start, spec.init_containers),
        (actions.containers_to_start, spec.containers),
        (actions.ephemeral_containers_to_start, spec.ephemeral_containers),
    ]:
        assert list(indexes) == sorted(set(indexes))
        assert all(0 <= index < len(listed or ()) for index in indexes)
    killed = [found.id for found in actions.containers_to_kill]
    assert len(killed) == len(set(killed))
    assert set(killed) <= {found.id for found in situation.record.containers}


@law
@given(situations())
def test_a_healthy_container_is_neither_started_nor_killed_while_its_pod_runs(situation: Situation) -> None:
    actions = situation.plan()
    if actions.kill_pod:
        return
    started = {each.name for each in situation.started(actions)}
    killed = {found.id for found in actions.containers_to_kill}
    for spec in (*situation.pod.spec.containers, *(situation.pod.spec.init_containers or ())):
        found = situation.record.container(spec.name)
        if found is None or found.state is not RUNNING or found.spec_hash != container_hash(spec):
            continue
        if FAILURE not in (situation.liveness.get(found.id), situation.startup.get(found.id)):
            assert spec.name not in started
            assert found.id not in killed


@law
@given(situations())
def test_a_container_to_start_is_not_running_or_is_killed_first(situation: Situation) -> None:
    actions = situation.plan()
    killed = {found.id for found in actions.containers_to_kill}
    for spec in situation.started(actions):
        found = situation.record.container(spec.name)
        surely_dead = found is None or found.state in (CREATED, EXITED)
        assert surely_dead or actions.kill_pod or (found is not None and found.id in killed)


@law
@given(situations())
def test_a_completed_container_is_not_restarted_in_its_sandbox(situation: Situation) -> None:
    actions, spec = situation.plan(), situation.pod.spec
    if actions.create_sandbox:
        return
    for index in actions.containers_to_start:
        found = situation.record.container(spec.containers[index].name)
        if found is not None and found.state is EXITED:
            assert restarts_after_exit(spec.containers[index], spec, found.exit_code)
    for index in actions.init_containers_to_start:
        each = (spec.init_containers or ())[index]
        found = situation.record.container(each.name)
        if not is_sidecar(each) and found is not None and found.state is EXITED:
            assert found.exit_code != 0


@law
@given(situations())
def test_a_new_sandbox_keeps_no_container_of_the_old_one(situation: Situation) -> None:
    actions = situation.plan()
    if actions.create_sandbox:
        assert actions.kill_pod
        assert actions.attempt > max((old.attempt for old in situation.record.sandboxes), default=-1)
        assert actions.init_containers_to_start in ((), (0,))
        assert not (actions.init_containers_to_start and actions.containers_to_start)


@law
@given(situations())
def test_a_pod_that_is_killed_without_a_new_sandbox_starts_no_init_or_app_container(situation: Situation) -> None:
    actions = situation.plan()
    if actions.kill_pod and not actions.create_sandbox:
        assert situation.started(actions) == []


@law
@given(situations())
def test_init_containers_run_one_after_the_other(situation: Situation) -> None:
    """An init container that is not a sidecar starts only if all later ones and the app are unknown or dead."""
    actions, spec = situation.plan(), situation.pod.spec
    init = spec.init_containers or ()
    turns = [index for index in actions.init_containers_to_start if not is_sidecar(init[index])]
    assert len(turns) <= 1
    if turns and not actions.create_sandbox:
        assert not actions.containers_to_start
        assert all(situation.record.container(later.name) is None for later in init[turns[0] + 1 :])


@law
@given(situations())
def test_the_plan_is_deterministic_and_ignores_results_of_old_containers(
    situation: Situation,
) -> None:
    stale = {"gone-0": FAILURE}
    widened = replace(situation, liveness=situation.liveness | stale, startup=situation.startup | stale)
    assert situation.plan() == situation.plan() == widened.plan()
