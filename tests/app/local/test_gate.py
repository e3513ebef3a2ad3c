"""The gate: pods come through, are held back, leave; and what was held back is remembered."""

import asyncio

from podkeeper.app.local.gate import Gate
from podkeeper.engine.notebook import Notebook
from podkeeper.host.clock import SystemClock
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.testing.fake_sources import FakeStaticSource, fake_file_source
from podkeeper.testing.fakes import FakeJournal

A, B = PodUID("uid-a"), PodUID("uid-b")


def pod(name: str, uid: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid),
        spec=PodSpec(containers=(Container(name="app", image="host"),)),
    )


class Scene:
    """A source, a gate, and what came through."""

    def __init__(self, journal: FakeJournal) -> None:
        self.gate = Gate(clock=SystemClock(), notes=Notebook(journal, "stopped/"))
        self.source: FakeStaticSource = fake_file_source("n1")
        self.told: list[PodUpdate] = []

    async def __aenter__(self) -> "Scene":
        self._running = asyncio.create_task(self.gate.behind(self.source).run(self.told.append))
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait((self._running,))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def through(self) -> list[str]:
        return [each.metadata.uid or "" for each in self.told[-1].pods]


def test_what_a_source_says_comes_through() -> None:
    async def scenario() -> None:
        async with Scene(FakeJournal()) as scene:
            assert (scene.told[0].op, scene.told[0].pods) == ("SET", ())
            scene.source.write("/a", pod("a", A), pod("b", B))
            await scene.settle()
            assert scene.through() == [A, B]
            assert scene.gate.seen_since(A) is not None

    asyncio.run(scenario())


def test_a_pod_held_back_leaves_until_it_is_said_to_be_gone_and_comes_back_when_released() -> None:
    async def scenario() -> None:
        async with Scene(FakeJournal()) as scene:
            scene.source.write("/a", pod("a", A), pod("b", B))
            await scene.settle()
            await scene.gate.hold(A)
            assert scene.through() == [B]
            assert (list(scene.gate.leaving()), list(scene.gate.held())) == ([A], [])
            scene.gate.gone(A)
            assert (list(scene.gate.leaving()), list(scene.gate.held())) == ([], [A])
            await scene.gate.hold(B)
            assert list(scene.gate.leaving()) == [B]  # not A, which is long gone
            await scene.gate.release(A)
            assert scene.through() == [A]
            assert list(scene.gate.held()) == []

    asyncio.run(scenario())


def test_who_is_wanted_again_while_it_leaves_comes_back_once_it_is_gone() -> None:
    async def scenario() -> None:
        async with Scene(FakeJournal()) as scene:
            scene.source.write("/a", pod("a", A), pod("b", B))
            await scene.settle()
            await scene.gate.hold(A)
            await scene.gate.release(A)
            assert (scene.through(), list(scene.gate.leaving())) == ([B], [A])
            assert scene.gate.comes_back(A)
            scene.gate.gone(A)
            assert (scene.through(), list(scene.gate.leaving())) == ([A, B], [])
            assert not scene.gate.comes_back(A)

    asyncio.run(scenario())


def test_a_manifest_that_goes_and_comes_back_starts_its_pod_anew_once_the_old_one_is_gone() -> None:
    async def scenario() -> None:
        async with Scene(FakeJournal()) as scene:
            for pods in ((pod("a", A),), (), (pod("a", A),)):
                scene.source.write("/a", *pods)
                await scene.settle()
            assert (scene.through(), list(scene.gate.leaving())) == ([], [A])
            scene.gate.gone(A)
            assert scene.through() == [A]

    asyncio.run(scenario())


def test_the_shortest_grace_that_somebody_asked_for_counts() -> None:
    async def scenario() -> None:
        async with Scene(FakeJournal()) as scene:
            scene.source.write("/a", pod("a", A))
            await scene.settle()
            await scene.gate.hold(A)
            assert scene.gate.leaving()[A].grace_seconds == 30
            await scene.gate.hold(A, grace_seconds=60)
            assert scene.gate.leaving()[A].grace_seconds == 30
            await scene.gate.hold(A, grace_seconds=3)
            assert scene.gate.leaving()[A].grace_seconds in (3, 4)

    asyncio.run(scenario())


def test_what_is_held_back_is_so_for_the_next_agent_and_forgotten_with_its_manifest() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        async with Scene(journal) as scene:
            scene.source.write("/a", pod("a", A), pod("b", B))
            await scene.settle()
            await scene.gate.hold(A)
        journal.crash()
        async with Scene(journal) as scene:
            scene.source.write("/a", pod("a", A), pod("b", B))
            await scene.settle()
            assert scene.through() == [B]
            assert list(scene.gate.held()) == [A]
            scene.source.write("/a", pod("b", B))
            await scene.settle()
            assert scene.gate.held() == {}
        assert journal.load() == {}

    asyncio.run(scenario())


def test_a_closed_gate_lets_nothing_through_and_nobody_remembers_it() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        async with Scene(journal) as scene:
            scene.source.write("/a", pod("a", A))
            await scene.settle()
            scene.gate.close()
            assert (scene.through(), list(scene.gate.leaving())) == ([], [A])
            scene.source.write("/b", pod("b", B))
            await scene.settle()
            assert scene.through() == []
        assert journal.load() == {}

    asyncio.run(scenario())


def test_a_changed_manifest_lets_the_old_pod_leave_and_the_new_one_come() -> None:
    async def scenario() -> None:
        async with Scene(FakeJournal()) as scene:
            scene.source.write("/a", pod("a", A))
            await scene.settle()
            scene.source.write("/a", pod("a", B))
            await scene.settle()
            assert (scene.through(), list(scene.gate.leaving())) == ([B], [A])

    asyncio.run(scenario())


def test_a_pod_held_back_stays_so_while_its_source_can_only_add_and_remove() -> None:
    """A source that cannot read its manifests since the agent started tells what it has stored, and never a SET."""

    async def scenario() -> list[tuple[str, list[str]]]:
        journal, told = FakeJournal(), list[PodUpdate]()
        async with Scene(journal) as scene:
            scene.source.write("/a", pod("a", A), pod("b", B))
            await scene.settle()
            await scene.gate.hold(A)
        gate = Gate(clock=SystemClock(), notes=Notebook(journal, "stopped/"))
        source = Partial()
        running = asyncio.create_task(gate.behind(source).run(told.append))
        await asyncio.sleep(0)
        source.tell(PodUpdate(Op.ADD, (pod("a", A), pod("b", B)), "file"))
        assert list(gate.held()) == [A]
        await gate.release(A)
        await gate.hold(B)
        gate.gone(B)
        source.tell(PodUpdate(Op.REMOVE, (pod("a", A),), "file"))
        running.cancel()
        return [(each.op, [found.metadata.uid or "" for found in each.pods]) for each in told]

    told = asyncio.run(scenario())
    assert told == [("ADD", [B]), ("ADD", [A, B]), ("REMOVE", [B]), ("ADD", [A]), ("REMOVE", [A])]


class Partial:
    """A source that says what a test says."""

    name = "file"

    def __init__(self) -> None:
        self.tell: Tell = lambda update: None

    async def run(self, tell: Tell) -> None:
        self.tell = tell
        await asyncio.Event().wait()
