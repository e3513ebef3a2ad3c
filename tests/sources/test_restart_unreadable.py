"""Real files and a real web server that cannot be read when the agent starts again."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from podkeeper.engine.notebook import Notebook
from podkeeper.host.clock import SystemClock
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Source
from podkeeper.sources.file import FileSource
from podkeeper.sources.http import HttpSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.testing.fakes import FakeJournal
from tests.sources.static_listener import config_map_text, pod_text, until
from tests.sources.web_server import serving

PATIENCE_SECONDS = 0.05


class Node:
    """What outlives the agent, and what the agent was told in its present life."""

    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.objects = LocalObjects()
        self.told: list[PodUpdate] = []

    @property
    def notes(self) -> ManifestNotes:
        book = Notebook(self.journal, "manifest/x/")
        return ManifestNotes(book, "n1", keep_secrets=True, patience_seconds=PATIENCE_SECONDS)

    def files(self, *paths: Path) -> FileSource:
        self.objects = LocalObjects()
        return FileSource(paths, "n1", SystemClock(), objects=self.objects, period_seconds=0.02, notes=self.notes)

    def url(self, url: str) -> HttpSource:
        self.objects = LocalObjects()
        return HttpSource(url, "n1", SystemClock(), objects=self.objects, period_seconds=0.02, notes=self.notes)

    async def lives(self, source: Source, *stages: tuple[Callable[[], object], str]) -> None:
        """A life of the agent: each stage does something, and then waits for a word like `SET web`."""
        self.told.clear()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(self.told.append))
            for act, expected in stages:
                act()
                await until(partial(self.is_last, expected), lambda: f"last told: {self.last}")
            task.cancel()

    def is_last(self, expected: str) -> bool:
        return self.last == expected

    @property
    def last(self) -> str:
        if not self.told:
            return ""
        names = [(pod.metadata.name or "").removesuffix("-n1") for pod in self.told[-1].pods]
        return " ".join([self.told[-1].op, *names])

    def pod(self) -> Pod:
        (found,) = self.told[-1].pods
        return found


def nothing() -> None:
    pass


def make_unreadable(path: Path) -> Callable[[], object]:
    """Replace a file or directory by a link to itself, which not even root can open; returns what undoes that."""
    aside = path.with_name(path.name + ".aside~")
    path.rename(aside)
    path.symlink_to(path.name)

    def undo() -> None:
        path.unlink()
        aside.rename(path)

    return undo


def test_pods_of_a_directory_that_cannot_be_listed_are_added_and_the_source_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, directory, other = Node(), tmp_path / "manifests", tmp_path / "other.yaml"
        directory.mkdir()
        (directory / "web.yaml").write_text(pod_text("web") + "---\n" + config_map_text("settings", "one"))
        other.write_text(pod_text("other"))
        await node.lives(node.files(directory, other), (nothing, "SET web other"))
        before = node.told[-1].pods[0]
        undo = make_unreadable(directory)
        await node.lives(node.files(directory, other), (nothing, "ADD web other"), (undo, "SET web other"))
        assert Op.SET not in [update.op for update in node.told[:-1]]
        assert [update.pods[0] for update in node.told] == [before, before], "the same pod, whoever tells it"
        assert [each.metadata.name for each in node.objects.objects()] == ["settings"]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["unreadable", "broken"])
def test_a_file_that_cannot_be_used_keeps_its_pods_through_a_restart(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        node, file = Node(), tmp_path / "web.yaml"
        file.write_text(pod_text("web"))
        (tmp_path / "other.yaml").write_text(pod_text("other"))
        await node.lives(node.files(tmp_path), (nothing, "SET other web"))
        make_unreadable(file) if how == "unreadable" else file.write_text("kind: [")
        (tmp_path / "other.yaml").unlink()
        await node.lives(node.files(tmp_path), (nothing, "SET web"))
        await node.lives(node.files(tmp_path), (nothing, "SET web"), (file.unlink, "SET"))
        await node.lives(node.files(tmp_path), (nothing, "SET"))

    asyncio.run(scenario())


def test_a_manifest_that_was_removed_while_no_agent_ran_is_not_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, file = Node(), tmp_path / "web.yaml"
        file.write_text(pod_text("web"))
        await node.lives(node.files(tmp_path), (nothing, "SET web"))
        file.unlink()
        await node.lives(node.files(tmp_path), (nothing, "SET"))
        assert len(node.told) == 1
        assert node.journal.load() == {}

    asyncio.run(scenario())


def test_pods_of_a_path_that_is_not_named_any_more_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, old, new = Node(), tmp_path / "old", tmp_path / "new"
        old.mkdir()
        new.mkdir()
        (old / "web.yaml").write_text(pod_text("web"))
        await node.lives(node.files(old), (nothing, "SET web"))
        make_unreadable(old)
        await node.lives(node.files(new), (nothing, "SET"))
        assert node.journal.load() == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "status, body, expected",
    [(500, b"", "ADD web"), (200, b"", "SET web"), (200, b"kind: [", "SET web"), (200, b"# nothing", "SET")],
    ids=["an error", "an empty answer", "a broken manifest", "a manifest without pods"],
)
def test_a_url_after_a_restart(status: int, body: bytes, expected: str) -> None:
    answer = web.Response(body=pod_text("web").encode())

    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=answer.body, status=answer.status)

    async def scenario() -> None:
        nonlocal answer
        node = Node()
        async with serving(serve) as url:
            await node.lives(node.url(url), (nothing, "SET web"))
            before = node.pod()
            answer = web.Response(body=body, status=status)
            await node.lives(node.url(url), (nothing, expected))
            assert all(pod == before for update in node.told for pod in update.pods)

    asyncio.run(scenario())


def test_a_url_that_does_not_answer_any_more_is_the_truth_again_as_soon_as_it_answers() -> None:
    bodies = {"now": pod_text("web"), "status": "200"}

    async def serve(request: web.Request) -> web.Response:
        return web.Response(text=bodies["now"], status=int(bodies["status"]))

    async def scenario() -> None:
        node = Node()
        async with serving(serve) as url:
            await node.lives(node.url(url), (nothing, "SET web"))
            bodies["status"] = "503"
            recover = (lambda: bodies.update(now=pod_text("other"), status="200"), "SET other")
            await node.lives(node.url(url), (nothing, "ADD web"), recover)

    asyncio.run(scenario())
