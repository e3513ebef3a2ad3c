"""The plan of housekeeping: each kind of leftover, then laws."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.housekeeping import CleanupInput, CleanupPlan, cleanup_plan, is_active, is_running
from podkeeper.rules.worker.updates import KillOptions, UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync
from podkeeper.testing import build

pod = partial(build.pod, namespace="ns", uid_prefix="", phase="Running")


def uids(*names: str) -> frozenset[PodUID]:
    return frozenset(map(PodUID, names))


def known(**states: PodWorkerState) -> dict[PodUID, PodWorkerSync]:
    return {
        PodUID(uid): PodWorkerSync(state, orphan=False, has_config=True, static=False) for uid, state in states.items()
    }


@dataclass(frozen=True)
class FakeWorkers:
    terminated: frozenset[PodUID] = frozenset()
    requested: frozenset[PodUID] = frozenset()
    terminating_static_pods: frozenset[str] = frozenset()

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        return uid in self.terminated

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.requested

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return full_name in self.terminating_static_pods


WEB = pod("web")
RUNS = PodRecord(uid="web")
NOTHING = CleanupInput(desired=(), mirrors=(), orphaned_mirrors=(), known={}, phases={})
DESIRED = replace(NOTHING, desired=((WEB, None),))
SYNCING, TERMINATING, TERMINATED = PodWorkerState


def desired(pod: Pod, mirror: Pod | None = None) -> CleanupInput:
    return replace(NOTHING, desired=((pod, mirror),))


def updates_of(plan: CleanupPlan) -> list[str]:
    """The updates of a plan, as text."""
    named = {"restart": plan.restarts, "terminate": plan.terminations, "kill": plan.orphan_kills}
    return [f"{verb} {update.uid}" for verb, updates in named.items() for update in updates]


UPDATES = {
    "a desired pod with a worker is left alone": (replace(DESIRED, known=known(web=SYNCING)), FakeWorkers(), []),
    "a desired pod without a worker starts again": (DESIRED, FakeWorkers(), ["restart web"]),
    "it starts again even while a former container of its UID runs":
        (replace(DESIRED, runtime_pods=(RUNS,)), FakeWorkers(), ["restart web"]),
    "not if the workers received it meanwhile": (replace(DESIRED, updated_since=uids("web")), FakeWorkers(), []),
    "not if it is known to be terminated": (DESIRED, FakeWorkers(terminated=uids("web")), []),
    "not if its phase in the API is terminal": (desired(pod("web", phase="Failed")), FakeWorkers(), []),
    "not if we rejected it": (replace(DESIRED, phases={PodUID("web"): "Failed"}), FakeWorkers(), []),
    "a terminal pod that is still terminating counts as active":
        (desired(pod("web", phase="Failed")), FakeWorkers(requested=uids("web")), ["restart web"]),
    "a deleted pod that was rejected is terminated":
        (desired(pod("web", phase="Failed", deleted=True)), FakeWorkers(), ["terminate web"]),
    "not while it has a worker":
        (replace(desired(pod("web", phase="Failed", deleted=True)), known=known(web=TERMINATING)), FakeWorkers(), []),
    "not before the API has its terminal phase":
        (replace(desired(pod("web", deleted=True)), phases={PodUID("web"): "Failed"}), FakeWorkers(), []),
    "a deleted terminal pod that still runs is killed":
        (replace(desired(pod("web", phase="Failed", deleted=True)), runtime_pods=(RUNS,)), FakeWorkers(), ["kill web"]),
    "a running orphaned pod is killed": (replace(NOTHING, runtime_pods=(RUNS,)), FakeWorkers(), ["kill web"]),
    "a running pod with a terminating worker is left to the worker":
        (replace(NOTHING, runtime_pods=(RUNS,), known=known(web=TERMINATING)), FakeWorkers(), []),
    "a pod that was added during the listing is not orphaned":
        (replace(NOTHING, runtime_pods=(RUNS,), updated_since=uids("web")), FakeWorkers(), []),
    "a terminal desired pod that runs without a worker is killed":
        (replace(desired(pod("web", phase="Failed")), runtime_pods=(RUNS,)), FakeWorkers(), ["kill web"]),
}  # fmt: skip


@pytest.mark.parametrize("cleanup, workers, expected", UPDATES.values(), ids=UPDATES.keys())
def test_updates(cleanup: CleanupInput, workers: FakeWorkers, expected: list[str]) -> None:
    assert updates_of(cleanup_plan(cleanup, workers)) == expected


def test_updates_have_the_mirror_pod_and_the_orphan_grace_period() -> None:
    failed, mirror, orphan = pod("failed", phase="Failed", deleted=True), pod("mirror"), PodRecord(uid="orphan")
    plan = cleanup_plan(
        replace(NOTHING, desired=((WEB, mirror), (failed, None)), runtime_pods=(orphan,)), FakeWorkers()
    )
    assert plan.restarts == (build.update(UpdateType.CREATE, WEB, mirror=mirror),)
    assert plan.terminations == (build.update(UpdateType.KILL, failed),)
    kill = KillOptions(grace_override_seconds=1)
    assert plan.orphan_kills == (build.update(UpdateType.KILL, orphan, kill=kill),)


def test_dead_pods_are_removed_if_they_are_orphaned_and_have_no_worker() -> None:
    dead = tuple(PodRecord(uid=uid) for uid in ("gone", "web", "ending", "new"))
    cleanup = replace(DESIRED, known=known(ending=TERMINATING), updated_since=uids("new"), stopped_pods=dead)
    plan = cleanup_plan(cleanup, FakeWorkers())
    assert (plan.dead_pods_to_remove, plan.has_work) == (dead[:1], True)


def test_probes_continue_only_for_pods_that_could_run() -> None:
    cleanup = replace(NOTHING, known=known(a=SYNCING, b=TERMINATING, c=TERMINATED), updated_since=uids("c", "new"))
    assert cleanup_plan(cleanup, FakeWorkers()).could_run == {"a", "b", "new"}


def test_statuses_of_desired_pods_and_of_mirrors_are_kept() -> None:
    cleanup = replace(DESIRED, mirrors=(pod("mirror"),), known=known(gone=TERMINATED))
    assert cleanup_plan(cleanup, FakeWorkers()).statuses_to_keep == {"web", "mirror"}


def test_an_orphaned_mirror_pod_is_deleted_after_its_static_pod_has_terminated() -> None:
    cleanup = replace(NOTHING, orphaned_mirrors=("gone_ns", "ending_ns"))
    plan = cleanup_plan(cleanup, FakeWorkers(terminating_static_pods=frozenset({"ending_ns"})))
    assert plan.mirrors_to_delete == ("gone_ns",)


LEFTOVERS = {
    "of a removed pod: both are removed": (NOTHING, "directory cgroup"),
    "of a desired pod with a worker: both stay": (replace(DESIRED, known=known(web=SYNCING)), ""),
    "of a desired terminated pod: the cgroup is removed": (replace(DESIRED, known=known(web=TERMINATED)), "cgroup"),
    "of a desired pod that starts again: both stay": (DESIRED, ""),
    "of a terminating orphaned pod with nothing running: the directory is removed":
        (replace(NOTHING, known=known(web=TERMINATING)), "directory"),
    "of a running orphaned pod: both stay until it is killed": (replace(NOTHING, runtime_pods=(RUNS,)), ""),
    "of a pod that was just added: the cgroup stays": (replace(DESIRED, updated_since=uids("web")), ""),
    "of a pod with a mounted volume: the cgroup is throttled": (replace(NOTHING, with_volumes=uids("web")), "throttle"),
}  # fmt: skip


@pytest.mark.parametrize("cleanup, expected", LEFTOVERS.values(), ids=LEFTOVERS.keys())
def test_leftovers(cleanup: CleanupInput, expected: str) -> None:
    plan = cleanup_plan(replace(cleanup, directories=uids("web"), cgroups=uids("web")), FakeWorkers())
    named = {
        "directory": plan.directories_to_remove,
        "cgroup": plan.cgroups_to_remove,
        "throttle": plan.cgroups_to_throttle,
    }
    assert " ".join(name for name, pods in named.items() if pods) == expected


DELETED_FAILED = pod("web", phase="Failed", deleted=True)
UNMOUNTED = {
    "of an unknown pod": (NOTHING, True),
    "not of a desired one": (DESIRED, False),
    "not of a running one": (replace(NOTHING, runtime_pods=(RUNS,)), False),
    "not while it has a worker": (replace(NOTHING, known=known(web=TERMINATING)), False),
    "not of a pod that was added meanwhile": (replace(NOTHING, updated_since=uids("web")), False),
    "not without a runtime listing": (replace(NOTHING, runtime_pods=None), False),
}  # fmt: skip


@pytest.mark.parametrize("cleanup, expected", UNMOUNTED.values(), ids=UNMOUNTED.keys())
def test_volumes_are_unmounted(cleanup: CleanupInput, expected: bool) -> None:
    assert (
        cleanup_plan(replace(cleanup, with_volumes=uids("web")), FakeWorkers()).volumes_to_unmount == uids("web")
    ) is expected


def test_without_a_runtime_listing_nothing_is_removed_or_killed_but_pods_restart() -> None:
    unlisted = replace(desired(DELETED_FAILED), runtime_pods=None, directories=uids("db"), cgroups=uids("db"))
    plan = cleanup_plan(unlisted, FakeWorkers())
    assert updates_of(plan) == []
    assert not plan.directories_to_remove | plan.cgroups_to_remove | plan.cgroups_to_throttle
    assert updates_of(cleanup_plan(replace(DESIRED, runtime_pods=None), FakeWorkers())) == ["restart web"]


RUNNING = {
    "a pod without sandboxes and containers": (PodRecord(uid="web"), False),
    "a pod whose sandbox is ready": (PodRecord(uid="web", sandboxes=(SandboxRecord(id="s", ready=True),)), True),
    "a pod whose sandbox is not": (PodRecord(uid="web", sandboxes=(SandboxRecord(id="s", ready=False),)), False),
    "a pod with a running container":
        (PodRecord(uid="web", containers=(ContainerRecord(id="c", name="c", state=RecordState.RUNNING),)), True),
    "a pod with a dead container":
        (PodRecord(uid="web", containers=(ContainerRecord(id="c", name="c", state=RecordState.EXITED),)), False),
}  # fmt: skip


@pytest.mark.parametrize("record, expected", RUNNING.values(), ids=RUNNING.keys())
def test_is_running(record: PodRecord, expected: bool) -> None:
    assert is_running(record) is expected


ACTIVE = {
    "a running pod": (WEB, None, FakeWorkers(), True),
    "a terminated pod": (WEB, None, FakeWorkers(terminated=uids("web")), False),
    "a pod that is terminal in the API": (pod("web", phase="Succeeded"), "Running", FakeWorkers(), False),
    "a pod that is terminal on the node": (WEB, "Failed", FakeWorkers(), False),
    "a pod that is terminal in the API and still terminates on the node":
        (pod("web", phase="Succeeded"), None, FakeWorkers(requested=uids("web")), True),
}  # fmt: skip


@pytest.mark.parametrize("which, published, workers, expected", ACTIVE.values(), ids=ACTIVE.keys())
def test_is_active(which: Pod, published: str | None, workers: FakeWorkers, expected: bool) -> None:
    assert is_active(which, published, workers) is expected


# Laws.

NAMES = ("a", "b", "c")
some = st.frozensets(st.sampled_from(NAMES)).map(lambda names: uids(*names))
phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])
fake_workers = st.builds(FakeWorkers, terminated=some, requested=some)


@st.composite
def cleanup_inputs(draw: st.DrawFn) -> CleanupInput:
    pods = [pod(uid, phase=draw(phases), deleted=draw(st.booleans())) for uid in sorted(draw(some))]
    return CleanupInput(
        desired=tuple((each, None) for each in pods),
        mirrors=(),
        orphaned_mirrors=(),
        known=known(**{uid: draw(st.sampled_from(PodWorkerState)) for uid in sorted(draw(some))}),
        updated_since=draw(some),
        runtime_pods=tuple(PodRecord(uid=uid) for uid in sorted(draw(some))),
        phases={uid: draw(phases) for uid in sorted(draw(some))},
        cgroups=draw(some),
        directories=draw(some),
        with_volumes=draw(some),
    )


@given(cleanup_inputs(), fake_workers)
def test_pods_with_a_worker_receive_no_update(cleanup: CleanupInput, workers: FakeWorkers) -> None:
    plan = cleanup_plan(cleanup, workers)
    updates = [*plan.restarts, *plan.terminations, *plan.orphan_kills]
    assert not {update.uid for update in updates} & {*cleanup.known, *cleanup.updated_since}
    assert len({update.uid for update in updates}) == len(updates)


@given(cleanup_inputs(), fake_workers)
def test_every_running_pod_has_a_worker_afterwards(cleanup: CleanupInput, workers: FakeWorkers) -> None:
    plan = cleanup_plan(cleanup, workers)
    updates = [*plan.restarts, *plan.terminations, *plan.orphan_kills]
    assert {record.uid for record in cleanup.runtime_pods or ()} <= {
        *cleanup.known,
        *cleanup.updated_since,
        *(update.uid for update in updates),
    }


@given(cleanup_inputs(), fake_workers)
def test_nothing_is_removed_from_a_pod_that_runs_starts_or_has_a_volume(
    cleanup: CleanupInput, workers: FakeWorkers
) -> None:
    plan = cleanup_plan(cleanup, workers)
    running = {record.uid for record in cleanup.runtime_pods or ()}
    starting = {update.uid for update in plan.restarts}
    removed = plan.directories_to_remove | plan.cgroups_to_remove
    assert not removed & (running | starting | set(cleanup.with_volumes))
    assert not (plan.cgroups_to_remove | plan.cgroups_to_throttle) & plan.could_run


# Pods that only the runtime reports, with an API.


def named(*names: str) -> tuple[PodRecord, ...]:
    return tuple(PodRecord(uid=name, name=name, namespace="default") for name in names)


def test_nothing_is_removed_from_a_pod_before_the_api_has_answered() -> None:
    all_uids = uids("runs", "ended", "confirmed")
    cleanup = replace(
        NOTHING,
        runtime_pods=named("runs", "confirmed"),
        stopped_pods=named("ended"),
        cgroups=all_uids,
        directories=all_uids,
        absent=uids("confirmed"),
    )
    plan = cleanup_plan(cleanup, FakeWorkers())
    assert {record.uid for record in plan.to_confirm} == {"runs", "ended"}
    assert [update.uid for update in plan.orphan_kills] == ["confirmed"]
    assert plan.dead_pods_to_remove == ()
    assert not (plan.directories_to_remove | plan.cgroups_to_remove) & {"runs", "ended"}
    assert uids("runs", "ended") <= plan.statuses_to_keep
    assert plan.has_work


def test_a_pod_without_a_name_is_orphaned_without_an_api_call() -> None:
    cleanup = replace(NOTHING, runtime_pods=(PodRecord(uid="nameless"),), absent=())
    plan = cleanup_plan(cleanup, FakeWorkers())
    assert plan.to_confirm == ()
    assert [update.uid for update in plan.orphan_kills] == ["nameless"]


UPDATE = build.update(UpdateType.SYNC, WEB)
WORK: dict[str, tuple[dict[str, Any], bool]] = {
    "could_run": ({"could_run": uids("web")}, False),
    "statuses_to_keep": ({"statuses_to_keep": uids("web")}, False),
    "cgroups_to_throttle": ({"cgroups_to_throttle": uids("web")}, False),
    "directories_to_remove": ({"directories_to_remove": uids("web")}, True),
    "volumes_to_unmount": ({"volumes_to_unmount": uids("web")}, True),
    "mirrors_to_delete": ({"mirrors_to_delete": ("web_ns",)}, True),
    "restarts": ({"restarts": (UPDATE,)}, True),
    "terminations": ({"terminations": (UPDATE,)}, True),
    "orphan_kills": ({"orphan_kills": (UPDATE,)}, True),
    "dead_pods_to_remove": ({"dead_pods_to_remove": (RUNS,)}, True),
    "cgroups_to_remove": ({"cgroups_to_remove": uids("web")}, True),
    "to_confirm": ({"to_confirm": (RUNS,)}, True),
}


@pytest.mark.parametrize(("change", "work"), WORK.values(), ids=WORK.keys())
def test_only_parts_that_remove_or_start_something_are_work(change: dict[str, Any], work: bool) -> None:
    nothing = cleanup_plan(NOTHING, FakeWorkers())
    assert not nothing.has_work
    assert replace(nothing, **change).has_work is work
