"""Real files and a real web server that are unreadable when the agent restarts."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.host.clock import SystemClock
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Source
from podkeeper.sources.file import FileSource
from podkeeper.sources.http import HttpSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.testing.fakes import FakeJournal
from tests.sources.static_listener import config_map_text, pod_text, until
from tests.sources.web_server import serving

SOURCE_TIMEOUT_SECONDS = 0.05


class Node:
    """The journal, and the updates that the current agent has received."""

    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.objects = LocalObjects()
        self.updates: list[PodUpdate] = []

    @property
    def stored_manifests(self) -> StoredManifests:
        book = Checkpoints(self.journal, "manifest/x/")
        return StoredManifests(book, "n1", keep_secrets=True, timeout_seconds=SOURCE_TIMEOUT_SECONDS)

    def files(self, *paths: Path) -> FileSource:
        self.objects = LocalObjects()
        return FileSource(
            paths,
            "n1",
            SystemClock(),
            objects=self.objects,
            period_seconds=0.02,
            stored_manifests=self.stored_manifests,
        )

    def url(self, url: str) -> HttpSource:
        self.objects = LocalObjects()
        return HttpSource(
            url, "n1", SystemClock(), objects=self.objects, period_seconds=0.02, stored_manifests=self.stored_manifests
        )

    async def run_agent(self, source: Source, *stages: tuple[Callable[[], object], str]) -> None:
        """Run an agent. Each step changes something, then waits for an update such as `SET web`."""
        self.updates.clear()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(self.updates.append))
            for act, expected in stages:
                act()
                await until(partial(self.is_last, expected), lambda: f"last update: {self.last}")
            task.cancel()

    def is_last(self, expected: str) -> bool:
        return self.last == expected

    @property
    def last(self) -> str:
        if not self.updates:
            return ""
        names = [(pod.metadata.name or "").removesuffix("-n1") for pod in self.updates[-1].pods]
        return " ".join([self.updates[-1].op, *names])

    def pod(self) -> Pod:
        (found,) = self.updates[-1].pods
        return found


def nothing() -> None:
    pass


def make_unreadable(path: Path) -> Callable[[], object]:
    """Replace a file or directory by a link to itself, which not even root can open. Return the undo function."""
    aside = path.with_name(path.name + ".aside~")
    path.rename(aside)
    path.symlink_to(path.name)

    def undo() -> None:
        path.unlink()
        aside.rename(path)

    return undo


def test_pods_of_an_unreadable_directory_are_added_and_the_source_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, directory, other = Node(), tmp_path / "manifests", tmp_path / "other.yaml"
        directory.mkdir()
        (directory / "web.yaml").write_text(pod_text("web") + "---\n" + config_map_text("settings", "one"))
        other.write_text(pod_text("other"))
        await node.run_agent(node.files(directory, other), (nothing, "SET web other"))
        before = node.updates[-1].pods[0]
        undo = make_unreadable(directory)
        await node.run_agent(node.files(directory, other), (nothing, "ADD web other"), (undo, "SET web other"))
        assert Op.SET not in [update.op for update in node.updates[:-1]]
        assert [update.pods[0] for update in node.updates] == [before, before], "the stored pod is the same"
        assert [each.metadata.name for each in node.objects.objects()] == ["settings"]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["unreadable", "broken"])
def test_an_invalid_file_keeps_its_pods_after_a_restart(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        node, file = Node(), tmp_path / "web.yaml"
        file.write_text(pod_text("web"))
        (tmp_path / "other.yaml").write_text(pod_text("other"))
        await node.run_agent(node.files(tmp_path), (nothing, "SET other web"))
        make_unreadable(file) if how == "unreadable" else file.write_text("kind: [")
        (tmp_path / "other.yaml").unlink()
        await node.run_agent(node.files(tmp_path), (nothing, "SET web"))
        await node.run_agent(node.files(tmp_path), (nothing, "SET web"), (file.unlink, "SET"))
        await node.run_agent(node.files(tmp_path), (nothing, "SET"))

    asyncio.run(scenario())


def test_a_manifest_that_was_removed_while_no_agent_ran_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, file = Node(), tmp_path / "web.yaml"
        file.write_text(pod_text("web"))
        await node.run_agent(node.files(tmp_path), (nothing, "SET web"))
        file.unlink()
        await node.run_agent(node.files(tmp_path), (nothing, "SET"))
        assert len(node.updates) == 1
        assert node.journal.load() == {}

    asyncio.run(scenario())


def test_pods_of_a_path_that_is_not_configured_any_more_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, old, new = Node(), tmp_path / "old", tmp_path / "new"
        old.mkdir()
        new.mkdir()
        (old / "web.yaml").write_text(pod_text("web"))
        await node.run_agent(node.files(old), (nothing, "SET web"))
        make_unreadable(old)
        await node.run_agent(node.files(new), (nothing, "SET"))
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
            await node.run_agent(node.url(url), (nothing, "SET web"))
            before = node.pod()
            answer = web.Response(body=body, status=status)
            await node.run_agent(node.url(url), (nothing, expected))
            assert all(pod == before for update in node.updates for pod in update.pods)

    asyncio.run(scenario())


def test_a_url_replaces_its_stored_pods_as_soon_as_it_answers() -> None:
    bodies = {"now": pod_text("web"), "status": "200"}

    async def serve(request: web.Request) -> web.Response:
        return web.Response(text=bodies["now"], status=int(bodies["status"]))

    async def scenario() -> None:
        node = Node()
        async with serving(serve) as url:
            await node.run_agent(node.url(url), (nothing, "SET web"))
            bodies["status"] = "503"
            recover = (lambda: bodies.update(now=pod_text("other"), status="200"), "SET other")
            await node.run_agent(node.url(url), (nothing, "ADD web"), recover)

    asyncio.run(scenario())
