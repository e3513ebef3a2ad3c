"""A source with a memory: what is told when, and what is noted how often."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from podkeeper.engine.notebook import Notebook
from podkeeper.model.k8s.core import Container, Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ManagedFieldsEntry, ObjectMeta
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, Op, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.sources.remembered import PATIENCE_SECONDS, Remember, RememberedSource
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import simulate

SOON = PATIENCE_SECONDS / 2
LATER = PATIENCE_SECONDS * 2


def pod(name: str, *, image: str = "app:v1", phase: str = "Pending", deleted: str | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", deletion_timestamp=deleted),
        spec=PodSpec(containers=(Container(name="app", image=image),)),
        status=PodStatus(phase=phase),
    )


WEB, JOB = pod("web"), pod("job")


class Script:
    """A source that says what a test says."""

    name = "api"

    def __init__(self, remember: Remember) -> None:
        self.remember = remember
        self.tell: Tell = lambda update: None

    async def run(self, tell: Tell) -> None:
        self.tell = tell
        await asyncio.Event().wait()

    def say(self, op: Op, *pods: Pod) -> None:
        self.remember(PodUpdate(op, pods, self.name))
        self.tell(PodUpdate(op, pods, self.name))


class CountingJournal(FakeJournal):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def put(self, key: str, value: bytes) -> None:
        self.writes += 1
        super().put(key, value)


class Life:
    """One life of the agent: a source and what it was heard to say."""

    def __init__(self, journal: FakeJournal) -> None:
        self.heard: list[tuple[Op, tuple[str, ...]]] = []
        self.pods: dict[str, Pod] = {}
        self._source = RememberedSource(self._script, Notebook(journal, "pod/"))

    async def __aenter__(self) -> "Life":
        self._task = asyncio.create_task(self._source.run(self._hear))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _script(self, remember: Remember) -> Script:
        self.script = Script(remember)
        return self.script

    def _hear(self, update: PodUpdate) -> None:
        self.heard.append((update.op, tuple(each.metadata.name or "" for each in update.pods)))
        self.pods = {each.metadata.name or "": each for each in update.pods}


def remembered_after(first_life: Callable[[Script], None], *, disk_full: bool = False) -> Life:
    """What a second life hears whose source says nothing."""

    async def scenario() -> Life:
        journal = FakeJournal()
        journal.disk_full = disk_full
        async with Life(journal) as life:
            first_life(life.script)
            await asyncio.sleep(1)
        journal.crash()
        async with Life(journal) as second:
            await asyncio.sleep(LATER)
        return second

    return simulate(scenario())[0]


REMEMBERED: dict[str, tuple[list[tuple[Op, tuple[Pod, ...]]], list[tuple[Op, tuple[str, ...]]]]] = {
    "nothing was said": ([], []),
    "a list": ([(Op.SET, (WEB, JOB))], [(Op.ADD, ("web", "job"))]),
    "an empty list": ([(Op.SET, ())], []),
    "a list and one more": ([(Op.SET, (WEB,)), (Op.ADD, (JOB,))], [(Op.ADD, ("web", "job"))]),
    "a pod that went": ([(Op.SET, (WEB, JOB)), (Op.REMOVE, (WEB,))], [(Op.ADD, ("job",))]),
    "a pod that a later list lacks": ([(Op.SET, (WEB, JOB)), (Op.SET, (JOB,))], [(Op.ADD, ("job",))]),
    "a pod nobody knew went": ([(Op.SET, (WEB,)), (Op.REMOVE, (JOB,))], [(Op.ADD, ("web",))]),
}


@pytest.mark.parametrize("said, expected", REMEMBERED.values(), ids=REMEMBERED.keys())
def test_a_silent_source_is_spoken_for(
    said: list[tuple[Op, tuple[Pod, ...]]], expected: list[tuple[Op, tuple[str, ...]]]
) -> None:
    def first_life(script: Script) -> None:
        for op, pods in said:
            script.say(op, *pods)

    assert remembered_after(first_life).heard == expected


CHANGES = {
    "a changed spec": pod("web", image="app:v2"),
    "a deletion": pod("web", deleted="2026-01-01T00:00:30Z"),
    "an end": pod("web", phase="Succeeded"),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_a_pod_is_remembered_as_it_was_last_seen(changed: Pod) -> None:
    def first_life(script: Script) -> None:
        script.say(Op.SET, WEB)
        script.say(Op.UPDATE, changed)

    assert remembered_after(first_life).pods == {"web": changed}


def test_mirrors_are_not_remembered_nor_is_who_wrote_what() -> None:
    mirror = replace(JOB, metadata=replace(JOB.metadata, annotations={CONFIG_MIRROR_ANNOTATION: "hash"}))
    managed = replace(WEB, metadata=replace(WEB.metadata, managed_fields=(ManagedFieldsEntry(manager="x"),)))
    assert remembered_after(lambda script: script.say(Op.SET, managed, mirror)).pods == {"web": WEB}


def test_what_was_not_synced_may_be_forgotten_and_nothing_else_happens() -> None:
    assert remembered_after(lambda script: script.say(Op.SET, WEB), disk_full=True).heard == []


async def _with_memory(journal: FakeJournal) -> None:
    async with Life(journal) as life:
        life.script.say(Op.SET, WEB, JOB)
        await asyncio.sleep(1)


def _second_life(then: Callable[[Life], Awaitable[None]], journal: FakeJournal | None = None) -> Life:
    async def scenario() -> Life:
        kept = journal or FakeJournal()
        await _with_memory(kept)
        async with Life(kept) as life:
            await then(life)
        return life

    return simulate(scenario())[0]


def test_a_source_that_speaks_in_time_speaks_alone() -> None:
    async def then(life: Life) -> None:
        await asyncio.sleep(SOON)
        life.script.say(Op.SET, JOB)
        await asyncio.sleep(LATER)

    assert _second_life(then).heard == [(Op.SET, ("job",))]


def test_a_source_that_comes_late_has_the_last_word_and_what_it_lacks_is_forgotten() -> None:
    journal = FakeJournal()

    async def then(life: Life) -> None:
        await asyncio.sleep(LATER)
        life.script.say(Op.SET, JOB)
        await asyncio.sleep(1)

    assert _second_life(then, journal).heard == [(Op.ADD, ("web", "job")), (Op.SET, ("job",))]
    assert sorted(journal.load()) == ["pod/uid-job"]


def test_no_pods_are_added_after_an_update_that_the_source_did_not_pass_to_remember() -> None:
    journal = FakeJournal()

    async def then(life: Life) -> None:
        await asyncio.sleep(SOON)
        life.script.tell(PodUpdate(Op.SET, (JOB,), "api"))
        await asyncio.sleep(LATER)
        assert life.heard == [(Op.SET, ("job",))]
        life.script.say(Op.SET, JOB)
        await asyncio.sleep(1)

    _second_life(then, journal)
    assert sorted(journal.load()) == ["pod/uid-job"]


def test_no_pods_are_added_while_the_source_waits_to_tell_an_update_that_is_noted() -> None:
    async def then(life: Life) -> None:
        await asyncio.sleep(SOON)
        life.script.remember(PodUpdate(Op.SET, (JOB,), "api"))
        await asyncio.sleep(LATER)  # the notes are not durable yet
        assert life.heard == []
        life.script.tell(PodUpdate(Op.SET, (JOB,), "api"))

    assert _second_life(then).heard == [(Op.SET, ("job",))]


def test_a_source_may_have_an_update_noted_while_it_is_made() -> None:
    async def scenario() -> FakeJournal:
        journal = FakeJournal()

        def script(remember: Remember) -> Script:
            remember(PodUpdate(Op.SET, (WEB,), "api"))
            return Script(remember)

        RememberedSource(script, Notebook(journal, "pod/"))
        return journal

    assert sorted(simulate(scenario())[0].load()) == ["pod/uid-web"]


def test_only_what_should_be_and_the_end_are_written_not_every_status() -> None:
    async def scenario() -> int:
        journal = CountingJournal()
        async with Life(journal) as life:
            life.script.say(Op.SET, WEB)
            for phase in ("Pending", "Running", "Running", "Succeeded", "Succeeded"):
                life.script.say(Op.UPDATE, pod("web", phase=phase))
            life.script.say(Op.SET, pod("web", phase="Succeeded"))
        async with Life(journal) as life:
            life.script.say(Op.SET, pod("web", phase="Succeeded"))
        return journal.writes

    assert simulate(scenario())[0] == 2


@pytest.mark.parametrize(
    "note",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"metadata": {"name": "\xff"}}', id="not UTF-8"),
        pytest.param(b'{"x": ' + b"[" * 2000, id="too deep"),
        pytest.param(b"{}", id="no UID"),
        pytest.param(b'{"metadata": {"name": "web", "namespace": "default", "uid": "uid-other"}}', id="another UID"),
        pytest.param(b'{"metadata": {"namespace": "default", "uid": "uid-web"}}', id="no name"),
    ],
)
def test_a_note_that_cannot_be_read_is_dropped_and_the_others_count(note: bytes) -> None:
    async def scenario() -> tuple[Life, FakeJournal]:
        journal = FakeJournal()
        await _with_memory(journal)
        journal.put("pod/uid-web", note)
        async with Life(journal) as life:
            await asyncio.sleep(LATER)
        return life, journal

    life, journal = simulate(scenario())[0]
    assert life.heard == [(Op.ADD, ("job",))]
    assert sorted(journal.load()) == ["pod/uid-job"]


def test_a_full_disk_holds_nobody_up() -> None:
    async def scenario() -> Life:
        journal = FakeJournal()
        journal.disk_full = True
        async with Life(journal) as life:
            life.script.say(Op.SET, WEB)
            await asyncio.sleep(1)
            life.script.say(Op.ADD, JOB)
        return life

    assert simulate(scenario())[0].heard == [(Op.SET, ("web",)), (Op.ADD, ("job",))]


def test_whoever_refuses_what_memory_says_does_not_end_the_source() -> None:
    async def scenario() -> list[Op]:
        journal = FakeJournal()
        await _with_memory(journal)
        scripts, heard = list[Script](), list[Op]()

        def script(remember: Remember) -> Script:
            scripts.append(Script(remember))
            return scripts[-1]

        def hear(update: PodUpdate) -> None:
            heard.append(update.op)
            if update.op is Op.ADD:
                raise ValueError("no")

        task = asyncio.create_task(RememberedSource(script, Notebook(journal, "pod/")).run(hear))
        await asyncio.sleep(LATER)
        scripts[0].say(Op.SET, WEB)
        task.cancel()
        await asyncio.wait([task])
        return heard

    assert simulate(scenario())[0] == [Op.ADD, Op.SET]
