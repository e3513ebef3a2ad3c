"""A source whose pods survive a restart: its updates and its writes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec.structs import replace

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ManagedFieldsEntry
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, Op, PodUpdate
from podkeeper.ports.source import SendUpdate
from podkeeper.sources.stored_pods import SOURCE_TIMEOUT_SECONDS, StoredPodsSource, StoreUpdate
from podkeeper.testing import build
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import simulate

SOON = SOURCE_TIMEOUT_SECONDS / 2
LATER = SOURCE_TIMEOUT_SECONDS * 2

pod = partial(build.pod, phase="Pending")
WEB, JOB = pod("web"), pod("job")


class Script:
    """A source that sends the updates of a test."""

    name = "api"

    def __init__(self, store: StoreUpdate) -> None:
        self.store = store
        self.forward: SendUpdate = lambda update: None

    async def run(self, send: SendUpdate) -> None:
        self.forward = send
        await asyncio.Event().wait()

    def send(self, op: Op, *pods: Pod) -> None:
        self.store(PodUpdate(op, pods, self.name))
        self.forward(PodUpdate(op, pods, self.name))


class CountingJournal(FakeJournal):
    """Counts the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def put(self, key: str, value: bytes) -> None:
        self.writes += 1
        super().put(key, value)


class AgentRun:
    """One run of the agent: a source and its updates."""

    def __init__(self, journal: FakeJournal) -> None:
        self.received: list[tuple[Op, tuple[str, ...]]] = []
        self.pods: dict[str, Pod] = {}
        self._source = StoredPodsSource(self._script, Checkpoints(journal, "pod/"))

    async def __aenter__(self) -> "AgentRun":
        self._task = asyncio.create_task(self._source.run(self._receive))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _script(self, store: StoreUpdate) -> Script:
        self.script = Script(store)
        return self.script

    def _receive(self, update: PodUpdate) -> None:
        self.received.append((update.op, tuple(each.metadata.name or "" for each in update.pods)))
        self.pods = {each.metadata.name or "": each for each in update.pods}


def updates_after(first_run: Callable[[Script], None], *, disk_full: bool = False) -> AgentRun:
    """Return the second run of an agent, whose source sends nothing."""

    async def scenario() -> AgentRun:
        journal = FakeJournal()
        journal.disk_full = disk_full
        async with AgentRun(journal) as run:
            first_run(run.script)
            await asyncio.sleep(1)
        journal.crash()
        async with AgentRun(journal) as second:
            await asyncio.sleep(LATER)
        return second

    return simulate(scenario())[0]


STORED: dict[str, tuple[list[tuple[Op, tuple[Pod, ...]]], list[tuple[Op, tuple[str, ...]]]]] = {
    "no update": ([], []),
    "a list": ([(Op.SET, (WEB, JOB))], [(Op.ADD, ("web", "job"))]),
    "an empty list": ([(Op.SET, ())], []),
    "a list and an addition": ([(Op.SET, (WEB,)), (Op.ADD, (JOB,))], [(Op.ADD, ("web", "job"))]),
    "a removed pod": ([(Op.SET, (WEB, JOB)), (Op.REMOVE, (WEB,))], [(Op.ADD, ("job",))]),
    "a pod that a later list lacks": ([(Op.SET, (WEB, JOB)), (Op.SET, (JOB,))], [(Op.ADD, ("job",))]),
    "the removal of an unknown pod": ([(Op.SET, (WEB,)), (Op.REMOVE, (JOB,))], [(Op.ADD, ("web",))]),
}


@pytest.mark.parametrize("updates, expected", STORED.values(), ids=STORED.keys())
def test_stored_pods_are_added_while_the_source_is_silent(
    updates: list[tuple[Op, tuple[Pod, ...]]], expected: list[tuple[Op, tuple[str, ...]]]
) -> None:
    def first_run(script: Script) -> None:
        for op, pods in updates:
            script.send(op, *pods)

    assert updates_after(first_run).received == expected


CHANGES = {
    "a changed spec": pod("web", image="app:v2"),
    "a deletion": pod("web", deleted="2026-01-01T00:00:30Z"),
    "an end": pod("web", phase="Succeeded"),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_the_last_version_of_a_pod_is_stored(changed: Pod) -> None:
    def first_run(script: Script) -> None:
        script.send(Op.SET, WEB)
        script.send(Op.UPDATE, changed)

    assert updates_after(first_run).pods == {"web": changed}


def test_mirror_pods_and_managed_fields_are_not_stored() -> None:
    mirror = replace(JOB, metadata=replace(JOB.metadata, annotations={CONFIG_MIRROR_ANNOTATION: "hash"}))
    managed = replace(WEB, metadata=replace(WEB.metadata, managed_fields=(ManagedFieldsEntry(manager="x"),)))
    assert updates_after(lambda script: script.send(Op.SET, managed, mirror)).pods == {"web": WEB}


def test_unsynced_writes_may_be_lost() -> None:
    assert updates_after(lambda script: script.send(Op.SET, WEB), disk_full=True).received == []


async def _with_stored_pods(journal: FakeJournal) -> None:
    async with AgentRun(journal) as run:
        run.script.send(Op.SET, WEB, JOB)
        await asyncio.sleep(1)


def _second_run(then: Callable[[AgentRun], Awaitable[None]], journal: FakeJournal | None = None) -> AgentRun:
    async def scenario() -> AgentRun:
        kept = journal or FakeJournal()
        await _with_stored_pods(kept)
        async with AgentRun(kept) as run:
            await then(run)
        return run

    return simulate(scenario())[0]


def test_stored_pods_are_not_sent_if_the_source_answers_in_time() -> None:
    async def then(run: AgentRun) -> None:
        await asyncio.sleep(SOON)
        run.script.send(Op.SET, JOB)
        await asyncio.sleep(LATER)

    assert _second_run(then).received == [(Op.SET, ("job",))]


def test_a_late_set_replaces_the_stored_pods() -> None:
    journal = FakeJournal()

    async def then(run: AgentRun) -> None:
        await asyncio.sleep(LATER)
        run.script.send(Op.SET, JOB)
        await asyncio.sleep(1)

    assert _second_run(then, journal).received == [(Op.ADD, ("web", "job")), (Op.SET, ("job",))]
    assert sorted(journal.load()) == ["pod/uid-job"]


def test_no_stored_pods_are_added_after_an_update_that_was_not_stored() -> None:
    journal = FakeJournal()

    async def then(run: AgentRun) -> None:
        await asyncio.sleep(SOON)
        run.script.forward(PodUpdate(Op.SET, (JOB,), "api"))
        await asyncio.sleep(LATER)
        assert run.received == [(Op.SET, ("job",))]
        run.script.send(Op.SET, JOB)
        await asyncio.sleep(1)

    _second_run(then, journal)
    assert sorted(journal.load()) == ["pod/uid-job"]


def test_no_stored_pods_are_added_while_a_stored_update_waits_to_be_sent() -> None:
    async def then(run: AgentRun) -> None:
        await asyncio.sleep(SOON)
        run.script.store(PodUpdate(Op.SET, (JOB,), "api"))
        await asyncio.sleep(LATER)  # the writes are not durable yet
        assert run.received == []
        run.script.forward(PodUpdate(Op.SET, (JOB,), "api"))

    assert _second_run(then).received == [(Op.SET, ("job",))]


def test_a_source_may_store_an_update_in_its_constructor() -> None:
    async def scenario() -> FakeJournal:
        journal = FakeJournal()

        def script(store: StoreUpdate) -> Script:
            store(PodUpdate(Op.SET, (WEB,), "api"))
            return Script(store)

        StoredPodsSource(script, Checkpoints(journal, "pod/"))
        return journal

    assert sorted(simulate(scenario())[0].load()) == ["pod/uid-web"]


def test_specs_and_ends_are_written_but_not_every_status() -> None:
    async def scenario() -> int:
        journal = CountingJournal()
        async with AgentRun(journal) as run:
            run.script.send(Op.SET, WEB)
            for phase in ("Pending", "Running", "Running", "Succeeded", "Succeeded"):
                run.script.send(Op.UPDATE, pod("web", phase=phase))
            run.script.send(Op.SET, pod("web", phase="Succeeded"))
        async with AgentRun(journal) as run:
            run.script.send(Op.SET, pod("web", phase="Succeeded"))
        return journal.writes

    assert simulate(scenario())[0] == 2


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"metadata": {"name": "\xff"}}', id="not UTF-8"),
        pytest.param(b'{"x": ' + b"[" * 2000, id="too deep"),
        pytest.param(b"{}", id="no UID"),
        pytest.param(b'{"metadata": {"name": "web", "namespace": "default", "uid": "uid-other"}}', id="another UID"),
        pytest.param(b'{"metadata": {"namespace": "default", "uid": "uid-web"}}', id="no name"),
    ],
)
def test_an_undecodable_pod_is_dropped_and_the_others_are_used(data: bytes) -> None:
    async def scenario() -> tuple[AgentRun, FakeJournal]:
        journal = FakeJournal()
        await _with_stored_pods(journal)
        journal.put("pod/uid-web", data)
        async with AgentRun(journal) as run:
            await asyncio.sleep(LATER)
        return run, journal

    run, journal = simulate(scenario())[0]
    assert run.received == [(Op.ADD, ("job",))]
    assert sorted(journal.load()) == ["pod/uid-job"]


def test_a_full_disk_delays_no_update() -> None:
    async def scenario() -> AgentRun:
        journal = FakeJournal()
        journal.disk_full = True
        async with AgentRun(journal) as run:
            run.script.send(Op.SET, WEB)
            await asyncio.sleep(1)
            run.script.send(Op.ADD, JOB)
        return run

    assert simulate(scenario())[0].received == [(Op.SET, ("web",)), (Op.ADD, ("job",))]


def test_a_refusal_of_stored_pods_does_not_end_the_source() -> None:
    async def scenario() -> list[Op]:
        journal = FakeJournal()
        await _with_stored_pods(journal)
        scripts, received = list[Script](), list[Op]()

        def script(store: StoreUpdate) -> Script:
            scripts.append(Script(store))
            return scripts[-1]

        def receive(update: PodUpdate) -> None:
            received.append(update.op)
            if update.op is Op.ADD:
                raise ValueError("no")

        task = asyncio.create_task(StoredPodsSource(script, Checkpoints(journal, "pod/")).run(receive))
        await asyncio.sleep(LATER)
        scripts[0].send(Op.SET, WEB)
        task.cancel()
        await asyncio.wait([task])
        return received

    assert simulate(scenario())[0] == [Op.ADD, Op.SET]
