"""Housekeeping's one decision: each kind of leftover by itself, then what may never happen to anybody."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.rules.housekeeping import Plan, Sight, is_active, is_running, plan_of
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import KnownPod, Stage


def pod(uid: str, *, phase: str = "Running", deleted: bool = False) -> Pod:
    deletion = "2024-01-01T00:00:00Z" if deleted else None
    metadata = ObjectMeta(name=uid, namespace="ns", uid=uid, deletion_timestamp=deletion)
    return Pod(metadata=metadata, status=PodStatus(phase=phase))


def uids(*names: str) -> frozenset[PodUID]:
    return frozenset(map(PodUID, names))


def known(**stages: Stage) -> dict[PodUID, KnownPod]:
    return {PodUID(uid): KnownPod(stage, orphan=False, has_config=True, static=False) for uid, stage in stages.items()}


@dataclass(frozen=True)
class Workers:
    """What the workers answer."""

    terminated: frozenset[PodUID] = frozenset()
    requested: frozenset[PodUID] = frozenset()
    ending_static_pods: frozenset[str] = frozenset()

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        return uid in self.terminated

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.requested

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return full_name in self.ending_static_pods


WEB = pod("web")
RUNS = PodRecord(uid="web")
NOTHING = Sight(desired=(), mirrors=(), orphaned_mirrors=(), known={}, phases={})
DESIRED = replace(NOTHING, desired=((WEB, None),))
SYNCING, ENDING, ENDED = Stage


def desired(pod: Pod, mirror: Pod | None = None) -> Sight:
    return replace(NOTHING, desired=((pod, mirror),))


def told(plan: Plan) -> list[str]:
    """The updates of a plan, as sentences."""
    named = {"restart": plan.restarts, "end": plan.endings, "kill": plan.orphan_kills}
    return [f"{verb} {update.uid}" for verb, updates in named.items() for update in updates]


UPDATES = {
    "a desired pod with a worker is left alone": (replace(DESIRED, known=known(web=SYNCING)), Workers(), []),
    "a desired pod without a worker starts again": (DESIRED, Workers(), ["restart web"]),
    "even while an earlier life of its UID still runs":
        (replace(DESIRED, runtime_pods=(RUNS,)), Workers(), ["restart web"]),
    "not if the workers were told of it meanwhile": (replace(DESIRED, told_since=uids("web")), Workers(), []),
    "not if it is known to have ended": (DESIRED, Workers(terminated=uids("web")), []),
    "not if its phase in the API is terminal": (desired(pod("web", phase="Failed")), Workers(), []),
    "not if we rejected it": (replace(DESIRED, phases={PodUID("web"): "Failed"}), Workers(), []),
    "a terminal pod that is still ending counts as active":
        (desired(pod("web", phase="Failed")), Workers(requested=uids("web")), ["restart web"]),
    "a deleted pod that was rejected is ended":
        (desired(pod("web", phase="Failed", deleted=True)), Workers(), ["end web"]),
    "not while its worker is at it":
        (replace(desired(pod("web", phase="Failed", deleted=True)), known=known(web=ENDING)), Workers(), []),
    "not before the API has its terminal phase":
        (replace(desired(pod("web", deleted=True)), phases={PodUID("web"): "Failed"}), Workers(), []),
    "a deleted terminal pod that runs all the same is killed":
        (replace(desired(pod("web", phase="Failed", deleted=True)), runtime_pods=(RUNS,)), Workers(), ["kill web"]),
    "a running pod nobody knows is killed": (replace(NOTHING, runtime_pods=(RUNS,)), Workers(), ["kill web"]),
    "a running pod whose worker ends it is left to the worker":
        (replace(NOTHING, runtime_pods=(RUNS,), known=known(web=ENDING)), Workers(), []),
    "a pod that came while we looked is no orphan":
        (replace(NOTHING, runtime_pods=(RUNS,), told_since=uids("web")), Workers(), []),
    "a terminal desired pod that runs unknown to the workers is killed":
        (replace(desired(pod("web", phase="Failed")), runtime_pods=(RUNS,)), Workers(), ["kill web"]),
}  # fmt: skip


@pytest.mark.parametrize("sight, workers, expected", UPDATES.values(), ids=UPDATES.keys())
def test_updates(sight: Sight, workers: Workers, expected: list[str]) -> None:
    assert told(plan_of(sight, workers)) == expected


def test_what_the_updates_say() -> None:
    over, mirror, stray = pod("over", phase="Failed", deleted=True), pod("mirror"), PodRecord(uid="stray")
    plan = plan_of(replace(NOTHING, desired=((WEB, mirror), (over, None)), runtime_pods=(stray,)), Workers())
    assert plan.restarts == (Update(type=UpdateType.CREATE, pod=WEB, mirror_pod=mirror),)
    assert plan.endings == (Update(type=UpdateType.KILL, pod=over),)
    kill = KillOptions(grace_override_seconds=1)
    assert plan.orphan_kills == (Update(type=UpdateType.KILL, running_pod=stray, kill=kill),)


def test_remains_go_once_nobody_wants_the_pod_and_no_worker_cares_for_it() -> None:
    remains = tuple(PodRecord(uid=uid) for uid in ("gone", "web", "ending", "young"))
    sight = replace(DESIRED, known=known(ending=ENDING), told_since=uids("young"), stopped_pods=remains)
    plan = plan_of(sight, Workers())
    assert (plan.remains_to_remove, plan.has_work) == (remains[:1], True)


def test_probes_go_on_for_pods_that_could_run_and_only_for_them() -> None:
    sight = replace(NOTHING, known=known(a=SYNCING, b=ENDING, c=ENDED), told_since=uids("c", "young"))
    assert plan_of(sight, Workers()).could_run == {"a", "b", "young"}


def test_statuses_of_desired_pods_and_of_mirrors_are_kept() -> None:
    sight = replace(DESIRED, mirrors=(pod("mirror"),), known=known(gone=ENDED))
    assert plan_of(sight, Workers()).statuses_to_keep == {"web", "mirror"}


def test_an_orphaned_mirror_is_deleted_once_its_static_pod_has_ended() -> None:
    sight = replace(NOTHING, orphaned_mirrors=("gone_ns", "ending_ns"))
    plan = plan_of(sight, Workers(ending_static_pods=frozenset({"ending_ns"})))
    assert plan.mirrors_to_delete == ("gone_ns",)


LEFTOVERS = {
    "of a pod that is gone: both go": (NOTHING, "directory cgroup"),
    "of a desired pod with a worker: both stay": (replace(DESIRED, known=known(web=SYNCING)), ""),
    "of a desired pod that has ended: the cgroup goes": (replace(DESIRED, known=known(web=ENDED)), "cgroup"),
    "of a desired pod that starts again: both stay": (DESIRED, ""),
    "of an undesired pod that ends, nothing running any more: the directory goes":
        (replace(NOTHING, known=known(web=ENDING)), "directory"),
    "of a running orphan: both stay until it has been killed": (replace(NOTHING, runtime_pods=(RUNS,)), ""),
    "of a young pod: the cgroup stays": (replace(DESIRED, told_since=uids("web")), ""),
    "of a pod with a mounted volume: the cgroup is throttled": (replace(NOTHING, with_volumes=uids("web")), "throttle"),
}  # fmt: skip


@pytest.mark.parametrize("sight, expected", LEFTOVERS.values(), ids=LEFTOVERS.keys())
def test_leftovers(sight: Sight, expected: str) -> None:
    plan = plan_of(replace(sight, directories=uids("web"), cgroups=uids("web")), Workers())
    named = {
        "directory": plan.directories_to_remove,
        "cgroup": plan.cgroups_to_remove,
        "throttle": plan.cgroups_to_throttle,
    }
    assert " ".join(name for name, pods in named.items() if pods) == expected


OVER = pod("web", phase="Failed", deleted=True)
UNMOUNTED = {
    "of a pod that nobody knows": (NOTHING, True),
    "not of a desired one": (DESIRED, False),
    "not of a running one": (replace(NOTHING, runtime_pods=(RUNS,)), False),
    "not while its worker is at it": (replace(NOTHING, known=known(web=ENDING)), False),
    "not of one that came meanwhile": (replace(NOTHING, told_since=uids("web")), False),
    "not while nobody can tell what runs": (replace(NOTHING, runtime_pods=None), False),
}  # fmt: skip


@pytest.mark.parametrize("sight, expected", UNMOUNTED.values(), ids=UNMOUNTED.keys())
def test_volumes_are_unmounted(sight: Sight, expected: bool) -> None:
    assert (plan_of(replace(sight, with_volumes=uids("web")), Workers()).volumes_to_unmount == uids("web")) is expected


def test_while_nobody_can_tell_what_runs_nothing_is_taken_and_nobody_is_declared_over_but_pods_start_again() -> None:
    blind = replace(desired(OVER), runtime_pods=None, directories=uids("db"), cgroups=uids("db"))
    plan = plan_of(blind, Workers())
    assert told(plan) == []
    assert not plan.directories_to_remove | plan.cgroups_to_remove | plan.cgroups_to_throttle
    assert told(plan_of(replace(DESIRED, runtime_pods=None), Workers())) == ["restart web"]


RUNNING = {
    "a pod of which nothing is left": (PodRecord(uid="web"), False),
    "a pod whose sandbox is ready": (PodRecord(uid="web", sandboxes=(SandboxRecord(id="s", ready=True),)), True),
    "a pod whose sandbox is not": (PodRecord(uid="web", sandboxes=(SandboxRecord(id="s", ready=False),)), False),
    "a pod with a running container":
        (PodRecord(uid="web", containers=(ContainerRecord(id="c", name="c", state=ContainerState.RUNNING),)), True),
    "a pod with a dead container":
        (PodRecord(uid="web", containers=(ContainerRecord(id="c", name="c", state=ContainerState.EXITED),)), False),
}  # fmt: skip


@pytest.mark.parametrize("record, expected", RUNNING.values(), ids=RUNNING.keys())
def test_is_running(record: PodRecord, expected: bool) -> None:
    assert is_running(record) is expected


ACTIVE = {
    "a running pod": (WEB, None, Workers(), True),
    "a pod that has ended": (WEB, None, Workers(terminated=uids("web")), False),
    "a pod that ended in the API": (pod("web", phase="Succeeded"), "Running", Workers(), False),
    "a pod that ended here": (WEB, "Failed", Workers(), False),
    "a pod that ended in the API and still ends here":
        (pod("web", phase="Succeeded"), None, Workers(requested=uids("web")), True),
}  # fmt: skip


@pytest.mark.parametrize("which, published, workers, expected", ACTIVE.values(), ids=ACTIVE.keys())
def test_is_active(which: Pod, published: str | None, workers: Workers, expected: bool) -> None:
    assert is_active(which, published, workers) is expected


# Laws.

NAMES = ("a", "b", "c")
some = st.frozensets(st.sampled_from(NAMES)).map(lambda names: uids(*names))
phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])
workers_answers = st.builds(Workers, terminated=some, requested=some)


@st.composite
def sights(draw: st.DrawFn) -> Sight:
    pods = [pod(uid, phase=draw(phases), deleted=draw(st.booleans())) for uid in sorted(draw(some))]
    return Sight(
        desired=tuple((each, None) for each in pods),
        mirrors=(),
        orphaned_mirrors=(),
        known=known(**{uid: draw(st.sampled_from(Stage)) for uid in sorted(draw(some))}),
        told_since=draw(some),
        runtime_pods=tuple(PodRecord(uid=uid) for uid in sorted(draw(some))),
        phases={uid: draw(phases) for uid in sorted(draw(some))},
        cgroups=draw(some),
        directories=draw(some),
        with_volumes=draw(some),
    )


@settings(deadline=None, derandomize=True)
@given(sights(), workers_answers)
def test_nobody_whom_the_workers_know_is_told_anything(sight: Sight, workers: Workers) -> None:
    plan = plan_of(sight, workers)
    updates = [*plan.restarts, *plan.endings, *plan.orphan_kills]
    assert not {update.uid for update in updates} & {*sight.known, *sight.told_since}
    assert len({update.uid for update in updates}) == len(updates)


@settings(deadline=None, derandomize=True)
@given(sights(), workers_answers)
def test_afterwards_everything_that_runs_is_known_to_the_workers(sight: Sight, workers: Workers) -> None:
    plan = plan_of(sight, workers)
    updates = [*plan.restarts, *plan.endings, *plan.orphan_kills]
    assert {record.uid for record in sight.runtime_pods or ()} <= {
        *sight.known,
        *sight.told_since,
        *(update.uid for update in updates),
    }


@settings(deadline=None, derandomize=True)
@given(sights(), workers_answers)
def test_nothing_is_taken_from_a_pod_that_runs_starts_or_has_a_volume(sight: Sight, workers: Workers) -> None:
    plan = plan_of(sight, workers)
    running = {record.uid for record in sight.runtime_pods or ()}
    starting = {update.uid for update in plan.restarts}
    taken = plan.directories_to_remove | plan.cgroups_to_remove
    assert not taken & (running | starting | set(sight.with_volumes))
    assert not (plan.cgroups_to_remove | plan.cgroups_to_throttle) & plan.could_run


# Pods that only the runtime knows, where there is an API to ask.


def named(*names: str) -> tuple[PodRecord, ...]:
    return tuple(PodRecord(uid=name, name=name, namespace="default") for name in names)


def test_nothing_is_removed_from_a_pod_before_the_api_has_answered() -> None:
    everything = uids("runs", "ended", "confirmed")
    sight = replace(
        NOTHING,
        runtime_pods=named("runs", "confirmed"),
        stopped_pods=named("ended"),
        cgroups=everything,
        directories=everything,
        absent=uids("confirmed"),
    )
    plan = plan_of(sight, Workers())
    assert {record.uid for record in plan.to_confirm} == {"runs", "ended"}
    assert [update.uid for update in plan.orphan_kills] == ["confirmed"]
    assert plan.remains_to_remove == ()
    assert not (plan.directories_to_remove | plan.cgroups_to_remove) & {"runs", "ended"}
    assert uids("runs", "ended") <= plan.statuses_to_keep
    assert plan.has_work


def test_a_pod_that_cannot_be_asked_about_is_an_orphan_as_before() -> None:
    sight = replace(NOTHING, runtime_pods=(PodRecord(uid="nameless"),), absent=())
    plan = plan_of(sight, Workers())
    assert plan.to_confirm == ()
    assert [update.uid for update in plan.orphan_kills] == ["nameless"]


UPDATE = Update(type=UpdateType.SYNC, pod=WEB)
WORK: dict[str, tuple[dict[str, Any], bool]] = {
    "could_run": ({"could_run": uids("web")}, False),
    "statuses_to_keep": ({"statuses_to_keep": uids("web")}, False),
    "cgroups_to_throttle": ({"cgroups_to_throttle": uids("web")}, False),
    "directories_to_remove": ({"directories_to_remove": uids("web")}, True),
    "volumes_to_unmount": ({"volumes_to_unmount": uids("web")}, True),
    "mirrors_to_delete": ({"mirrors_to_delete": ("web_ns",)}, True),
    "restarts": ({"restarts": (UPDATE,)}, True),
    "endings": ({"endings": (UPDATE,)}, True),
    "orphan_kills": ({"orphan_kills": (UPDATE,)}, True),
    "remains_to_remove": ({"remains_to_remove": (RUNS,)}, True),
    "cgroups_to_remove": ({"cgroups_to_remove": uids("web")}, True),
    "to_confirm": ({"to_confirm": (RUNS,)}, True),
}


@pytest.mark.parametrize(("change", "work"), WORK.values(), ids=WORK.keys())
def test_what_is_removed_or_begun_is_work_and_what_is_kept_is_not(change: dict[str, Any], work: bool) -> None:
    nothing = plan_of(NOTHING, Workers())
    assert not nothing.has_work
    assert replace(nothing, **change).has_work is work
