"""Facts about pods: which module's answer decides in which case."""

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from podkeeper.engine.cache import PodCache
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.manager import PodManager
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.pod_facts import PodFacts
from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, CONFIG_MIRROR_ANNOTATION, FILE_SOURCE, Op, PodUID, PodUpdate
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import WorkerTable
from podkeeper.testing import build
from podkeeper.testing.virtual_time import BEGINNING
from tests.doubles import stand_in
from tests.engine.small_node import pod

WEB = pod("web")
UID = uid_of(WEB)
RUNNING = PodRecord(uid=UID, sandboxes=(SandboxRecord(id="s1", ready=True),))
STOPPED = PodRecord(uid=UID, containers=(ContainerRecord(id="c1", name="app", state=RecordState.EXITED),))


@dataclass
class Case:
    """The state of a pod in the modules."""

    desired: bool = True
    has_worker: bool = False
    pending_updates: int = 0
    swept: bool = False  # housekeeping has run, so that pods without a worker count as removed
    seen: PodRecord | None = None  # None: the cache is not sure
    sources_ready: bool = True
    in_doubt: set[PodUID] = field(default_factory=set)

    def get(self, uid: PodUID) -> PodRecord:
        return self.seen or PodRecord(uid=uid)

    def get_if_sure(self, uid: PodUID) -> PodRecord | None:
        return self.seen

    def is_unconfirmed(self, uid: PodUID) -> bool:
        return uid in self.in_doubt

    def facts(self, *pods: Pod) -> PodFacts:
        storage = PodStorage(emit=lambda _: None, record_event=lambda _: None, now=lambda: BEGINNING)
        if self.sources_ready:
            storage.merge(PodUpdate(Op.SET, (), FILE_SOURCE))
        storage.merge(PodUpdate(Op.SET, (WEB,) if self.desired else (), API_SOURCE))
        manager, states = PodManager(), WorkerTable()
        for each in (*([WEB] if self.desired else ()), *pods):
            manager.update(each)
        if self.swept:
            states.sync_known_pods(())
        if self.has_worker:
            states.update(build.update(UpdateType.CREATE, WEB), None)
        return PodFacts(
            storage=storage,
            pods=manager,
            cache=stand_in(PodCache, self),
            states=states,
            inbox=stand_in(LoopInbox, self),
            sources=(API_SOURCE, FILE_SOURCE),
            orphans=stand_in(OrphanCheck, self),
        )


COULD_RUN: dict[str, tuple[Case, bool]] = {
    "a pod with a worker": (Case(has_worker=True, seen=STOPPED), True),
    "a desired pod without a worker that the cache is not sure of": (Case(), True),
    "a desired pod without a worker that runs": (Case(seen=RUNNING), True),
    "a desired pod without a worker that does not run": (Case(seen=STOPPED), False),
    "a desired pod without a worker, after a sweep": (Case(swept=True, seen=RUNNING), False),
    "an unknown pod before the first sweep": (Case(desired=False, seen=STOPPED), True),
    "an unknown pod after the first sweep": (Case(desired=False, swept=True, seen=RUNNING), False),
}


@pytest.mark.parametrize("case, expected", COULD_RUN.values(), ids=COULD_RUN.keys())
def test_could_have_running_containers(case: Case, expected: bool) -> None:
    assert case.facts().could_have_running_containers(UID) is expected


def test_a_mirror_pod_could_run_if_its_static_pod_could() -> None:
    mirror = replace(
        WEB,
        metadata=replace(
            WEB.metadata,
            uid="uid-mirror",
            annotations={**(WEB.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: "hash"},
        ),
    )
    facts = Case(has_worker=True, swept=True).facts(mirror)
    assert facts.could_have_running_containers(PodUID("uid-mirror"))
    assert not facts.could_have_running_containers(PodUID("uid-unknown"))


NEEDS: dict[str, tuple[Case, bool]] = {
    "a desired pod": (Case(swept=True), True),
    "a pod with a worker": (Case(desired=False, swept=True, has_worker=True), True),
    "a removed pod": (Case(desired=False, swept=True), False),
}


@pytest.mark.parametrize("case, expected", NEEDS.values(), ids=NEEDS.keys())
def test_needs_status(case: Case, expected: bool) -> None:
    assert case.facts().needs_status(UID) is expected


REMOVED: dict[str, tuple[Case, bool]] = {
    "no source and no worker has it": (Case(desired=False, swept=True), True),
    "a source is not ready": (Case(desired=False, swept=True, sources_ready=False), False),
    "the API may have it": (Case(desired=False, swept=True, in_doubt={UID}), False),
    "a source has it": (Case(swept=True), False),
    "a worker has it": (Case(desired=False, swept=True, has_worker=True), False),
    "housekeeping has not run": (Case(desired=False), False),
}


@pytest.mark.parametrize("case, expected", REMOVED.values(), ids=REMOVED.keys())
def test_is_removed(case: Case, expected: bool) -> None:
    assert case.facts().is_removed(UID) is expected


@pytest.mark.parametrize("desired", [True, False])
def test_only_a_pod_that_a_source_has_may_start(desired: bool) -> None:
    assert Case(desired=desired, has_worker=True).facts().may_start(UID) is desired


ENDED: dict[str, tuple[Case, bool]] = {
    "no source and no worker has it": (Case(desired=False), True),
    "a source has it": (Case(), False),
    "its worker runs": (Case(desired=False, has_worker=True), False),
    "the loop has not handled an update": (Case(desired=False, pending_updates=1), False),
}


@pytest.mark.parametrize("case, expected", ENDED.values(), ids=ENDED.keys())
def test_has_ended(case: Case, expected: bool) -> None:
    assert case.facts().has_ended(UID) is expected


NO_CONTAINERS: dict[str, tuple[Case, bool]] = {
    "no worker and nothing in the runtime": (Case(), True),
    "a worker has it": (Case(has_worker=True), False),
    "the runtime has an exited container": (Case(seen=STOPPED), False),
    "the runtime has a sandbox": (Case(seen=RUNNING), False),
}


@pytest.mark.parametrize("case, expected", NO_CONTAINERS.values(), ids=NO_CONTAINERS.keys())
def test_has_no_containers(case: Case, expected: bool) -> None:
    assert case.facts().has_no_containers(UID) is expected
