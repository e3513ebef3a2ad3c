"""Pods from real files: updates, reports, and all ways of writing a file."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from podkeeper.host.clock import SystemClock
from podkeeper.model.errors import BadInput, NotFound, Problem
from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.messages import PodUpdate
from podkeeper.sources.file import FileSource
from podkeeper.sources.local_objects import LocalObjects
from tests.sources.static_listener import FailingStore, Receiver, config_map_text, pod_text, running, until

SOON = 0.05
LONG = 60.0  # longer than the test, so changes are found only by inotify


@asynccontextmanager
async def listening(
    *paths: Path, objects: LocalObjects | None = None, period: float = LONG
) -> AsyncIterator[tuple[Receiver, FileSource]]:
    receiver = Receiver()
    source = FileSource(paths, "n1", SystemClock(), objects=objects, period_seconds=period, report=receiver.report)
    async with running(source, receiver):
        yield receiver, source


def test_files_are_read_in_order_and_may_have_several_documents(tmp_path: Path) -> None:
    two = (
        '{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p1"}, "spec": {"containers": [%s]}}]}'
    )
    (tmp_path / "b.json").write_text(two % '{"name": "app", "image": "host"}')
    (tmp_path / "a.yaml").write_text(f"{pod_text('z')}---\n# nothing\n---\n{pod_text('w')}")
    items = pod_text("x").replace("\n", "\n    ")
    (tmp_path / "c").write_text(f"apiVersion: v1\nkind: List\nitems:\n  - {items}\n")

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("z", "w", "p1", "x")
            assert len(receiver.updates) == 1
            assert source.problems() == ()
            assert {pod.metadata.namespace for pod in receiver.updates[0].pods} == {"default"}

    asyncio.run(scenario())


def test_uids_depend_on_the_file_and_its_path(tmp_path: Path) -> None:
    for location in ("here", "there"):
        (tmp_path / location).mkdir()
        (tmp_path / location / "web.yaml").write_text(pod_text("web"))

    async def uid_in(location: str) -> str | None:
        async with listening(tmp_path / location) as (receiver, _):
            await receiver.receives("web")
            return receiver.updates[0].pods[0].metadata.uid

    assert asyncio.run(uid_in("here")) == asyncio.run(uid_in("here"))
    assert asyncio.run(uid_in("here")) != asyncio.run(uid_in("there"))


def test_a_missing_path_is_reported_once_and_watched(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "manifests"

    async def scenario() -> None:
        async with listening(path) as (receiver, source):
            await receiver.receives()
            (problem,) = source.problems()
            assert problem.file == str(path)
            assert "no such file or directory" in problem.message
            path.mkdir(parents=True)
            (path / "web.yaml").write_text(pod_text("web"))
            await receiver.receives("web")
            assert source.problems() == ()
            assert [location for location, _ in receiver.reports] == [str(path)] * 2  # missing, then fixed

    asyncio.run(scenario())


def test_a_removed_and_recreated_directory_is_still_watched(tmp_path: Path) -> None:
    path = tmp_path / "manifests"
    path.mkdir()
    (path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(path) as (receiver, source):
            await receiver.receives("web")
            (path / "web.yaml").unlink()
            path.rmdir()
            await receiver.receives()
            await until(lambda: bool(source.problems()))
            path.mkdir()
            (path / "db.yaml").write_text(pod_text("db"))
            await receiver.receives("db")

    asyncio.run(scenario())


def test_a_single_file_is_watched_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    (tmp_path / "other.yaml").write_text(pod_text("other"))

    async def scenario() -> None:
        async with listening(path) as (receiver, _):
            await receiver.receives("web")
            (tmp_path / "new.yaml").write_text(pod_text("web", "new"))
            (tmp_path / "new.yaml").rename(path)
            await until(lambda: receiver.images() == {"web": "new"})
            path.unlink()
            await receiver.receives()

    asyncio.run(scenario())


IGNORED = (".hidden.yaml", "web.yaml~", "#web.yaml#", "web.yaml.swp", "web.yaml.bak", "web.yaml.dpkg-old", "x.tmp")


@pytest.mark.parametrize("name", IGNORED)
def test_hidden_and_backup_files_are_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(pod_text("old"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives()
            (tmp_path / "web.yaml").write_text(pod_text("web"))
            await receiver.receives("web")
            assert source.problems() == ()

    asyncio.run(scenario())


# Invalid files.

BROKEN: dict[str, tuple[bytes, int, str]] = {
    "invalid YAML": (b"kind: Pod\nmetadata: [\n", 3, "cannot parse YAML"),
    "invalid UTF-8": (b"a: \xff\xfe\n", 1, "UTF-8"),
    "an empty file": (b"", 0, "the manifest is empty"),
    "an invalid pod": (pod_text("web").replace("name: app", "name: App").encode(), 7, "Invalid value: "),
    "a pod without a name": (pod_text("web").replace("  name: web", "  labels: {}").encode(), 3, "needs a name"),
    "a wrong type": (pod_text("web", more="    args: yes\n").encode(), 9, "must be a list"),
    "a misspelt kind": (pod_text("web").replace("Pod", "pod").encode(), 2, "did you mean Pod?"),
    "an unknown version": (pod_text("web").replace("v1", "v9").encode(), 1, 'supported values: "v1"'),
    "no kind": (b"a: 1\n", 1, "Required value"),
    "a duplicate name": (f"{pod_text('web')}---\n{pod_text('web')}".encode(), 13, "is defined twice in this manifest"),
    "a reference to an object of an API": (
        pod_text("web", more="    envFrom:\n    - configMapRef: {name: c}\n").encode(),
        10,
        "static pods may not reference configmaps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text, line, reason", BROKEN.values(), ids=BROKEN.keys())
def test_an_invalid_file_is_reported_and_keeps_its_pods(tmp_path: Path, text: bytes, line: int, reason: str) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(f"{pod_text('web')}---\n{pod_text('db')}")
    (tmp_path / "other.yaml").write_text(pod_text("other"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("other", "web", "db")
            path.write_bytes(text)
            await until(lambda: bool(source.problems()))
            problem = source.problems()[0]
            assert (problem.file, problem.line) == (str(path), line)
            assert reason in problem.message
            (tmp_path / "later.yaml").write_text(pod_text("later"))
            await until(lambda: "later" in receiver.names())
            assert {"web", "db"} <= set(receiver.names())
            path.write_text(pod_text("web", "fixed"))
            await until(lambda: receiver.images().get("web") == "fixed")
            assert source.problems() == ()
            assert "db" not in receiver.names()

    asyncio.run(scenario())


def test_the_pods_of_a_removed_invalid_file_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web")
            path.write_text("{")
            await until(lambda: bool(source.problems()))
            path.unlink()
            await receiver.receives()
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_problem_is_reported_once_per_change_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text("kind: [")

    async def scenario() -> None:
        async with listening(tmp_path, period=0.02) as (receiver, source):
            await receiver.receives()
            await asyncio.sleep(0.1)  # for several periods
            assert len(receiver.reports) == 1
            path.write_text("kind: [ ")
            await until(lambda: len(receiver.reports) == 2)
            assert {problems for _, problems in receiver.reports} == {source.problems()}
            path.write_text(pod_text("web"))
            await receiver.receives("web")
            await asyncio.sleep(0.1)
            assert receiver.reports[2:] == [(str(path), ())]

    asyncio.run(scenario())


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(11 * 1024 * 1024)


def make_unreadable(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can read everything")
    path.chmod(0)


UNREADABLE: dict[str, Callable[[Path], None]] = {
    "a dangling link": make_dangling,
    "a file too large": make_huge,
    "a file without permission": make_unreadable,
}


@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_file_keeps_its_pods(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web")
            spoil(path)
            await until(lambda: bool(source.problems()))
            (tmp_path / "later.yaml").write_text(pod_text("later"))
            await receiver.receives("later", "web")

    asyncio.run(scenario())


def test_pipes_and_directories_are_reported_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web")
            assert [Path(problem.file).name for problem in source.problems()] == ["folder", "pipe"]

    asyncio.run(scenario())


def test_other_kinds_are_ignored_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
    path.write_text(f"{service}---\n{pod_text('web')}---\n{pod_text('db')}")

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web", "db")
            assert [(problem.field, problem.line) for problem in source.problems()] == [("kind", 2)]
            path.write_text(f"{service}---\n{pod_text('db')}")  # a Service does not keep the removed pod
            await receiver.receives("db")

    asyncio.run(scenario())


def test_commenting_out_a_manifest_removes_its_pods(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web")
            path.write_text("".join(f"# {line}\n" for line in pod_text("web").splitlines()))
            await receiver.receives()
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_name_belongs_to_the_file_that_had_it_first(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(pod_text("web", "m"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web")
            (tmp_path / "a.yaml").write_text(pod_text("web", "a"))
            await until(lambda: bool(source.problems()))
            (problem,) = source.problems()
            assert (problem.file, problem.line) == (str(tmp_path / "a.yaml"), 4)
            assert problem.message.endswith(f"Pod default/web is already defined in {tmp_path / 'm.yaml'}")
            assert receiver.images() == {"web": "m"}
            (tmp_path / "m.yaml").unlink()
            await until(lambda: receiver.images() == {"web": "a"})
            assert source.problems() == ()

    asyncio.run(scenario())


# Ways of writing a file.


async def in_place(path: Path, text: str) -> None:
    path.write_text(text)


async def by_rename(path: Path, text: str) -> None:
    (path.parent / ".new").write_text(text)
    (path.parent / ".new").rename(path)


async def as_vim_does(path: Path, text: str) -> None:
    (path.parent / "4913").touch()
    (path.parent / "4913").unlink()
    backup = path.with_name(f"{path.name}~")
    path.rename(backup)
    await asyncio.sleep(SOON)  # a slow disk
    path.write_text(text)
    backup.unlink()


async def as_git_does(path: Path, text: str) -> None:
    path.unlink()
    await asyncio.sleep(SOON)
    path.write_text(text)


async def slowly(path: Path, text: str) -> None:
    with path.open("w") as file:
        for line in text.splitlines(keepends=True):
            file.write(line)
            file.flush()
            await asyncio.sleep(0.02)


WRITERS: dict[str, Callable[[Path, str], Awaitable[None]]] = {
    "in place": in_place,
    "by rename": by_rename,
    "as vim does": as_vim_does,
    "as git does": as_git_does,
    "line by line": slowly,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_no_way_of_writing_a_file_removes_its_pods_or_sends_a_part(
    tmp_path: Path, write: Callable[[Path, str], Awaitable[None]]
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(f"{pod_text('web', 'v1')}---\n{pod_text('db', 'v1')}")

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web", "db")
            await write(path, f"{pod_text('web', 'v2', '    args: [a]')}\n---\n{pod_text('db', 'v2')}")
            await until(lambda: receiver.images() == {"web": "v2", "db": "v2"})
            seen = [[pod.spec.containers[0].image for pod in update.pods] for update in receiver.updates]
            assert seen == [["v1", "v1"], ["v2", "v2"]]
            assert source.problems() == ()
            assert receiver.reports == []

    asyncio.run(scenario())


def test_a_new_file_is_read_when_it_is_closed_or_not_written_for_a_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, _):
            await receiver.receives()
            with (tmp_path / "web.yaml").open("w") as file:
                file.write(pod_text("web"))
                file.flush()
                await asyncio.sleep(SOON)
                assert receiver.names() == []
                await receiver.receives("web")  # still open

    asyncio.run(scenario())


def test_a_hard_link_is_found(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, _):
            await receiver.receives()
            (tmp_path / "web.yaml").hardlink_to(tmp_path / ".hidden")
            await receiver.receives("web")

    asyncio.run(scenario())


def config_map_volume(path: Path, version: str, texts: dict[str, str]) -> None:
    """Write files as a ConfigMap volume has them: links through `..data`, which is swapped."""
    (path / f"..{version}").mkdir(parents=True)
    for name, text in texts.items():
        (path / f"..{version}" / name).write_text(text)
    (path / "..data_tmp").symlink_to(f"..{version}")
    (path / "..data_tmp").rename(path / "..data")
    for name in texts:
        if not (path / name).is_symlink():
            (path / name).symlink_to(f"..data/{name}")


def test_a_config_map_volume_is_read_again_after_each_swap(tmp_path: Path) -> None:
    config_map_volume(tmp_path, "one", {"web.yaml": pod_text("web", "v1")})

    async def scenario() -> None:
        async with listening(tmp_path) as (receiver, source):
            await receiver.receives("web")
            config_map_volume(tmp_path, "two", {"web.yaml": pod_text("web", "v2"), "db.yaml": pod_text("db")})
            await until(lambda: receiver.images() == {"web": "v2", "db": "host"})
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_directory_is_read_again_after_its_link_changes(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version / "manifests").mkdir(parents=True)
        (tmp_path / version / "manifests" / "web.yaml").write_text(pod_text("web", version))
    current = tmp_path / "current"
    current.symlink_to("v1")

    async def scenario() -> None:
        async with listening(current / "manifests") as (receiver, _):
            await until(lambda: bool(receiver.updates) and receiver.images() == {"web": "v1"})
            (tmp_path / "next").symlink_to(tmp_path / "v2")
            (tmp_path / "next").rename(current)
            await until(lambda: receiver.images() == {"web": "v2"})
            (tmp_path / "v2" / "manifests" / "db.yaml").write_text(pod_text("db"))
            await receiver.receives("db", "web")

    asyncio.run(scenario())


def test_a_change_without_an_event_is_found_after_the_period(tmp_path: Path) -> None:
    elsewhere, directory = tmp_path / "elsewhere.yaml", tmp_path / "manifests"
    elsewhere.write_text(pod_text("web", "v1"))
    directory.mkdir()
    (directory / "web.yaml").symlink_to(elsewhere)  # the target of a link is not watched

    async def scenario() -> None:
        async with listening(directory, period=0.1) as (receiver, _):
            await receiver.receives("web")
            elsewhere.write_text(pod_text("web", "v2"))
            await until(lambda: receiver.images() == {"web": "v2"})

    asyncio.run(scenario())


# Updates.


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(pod_text(name))

    async def scenario() -> None:
        async with listening(tmp_path, period=0.02) as (receiver, _):
            await receiver.receives("a", "b", "c")
            await asyncio.sleep(0.1)
            assert len(receiver.updates) == 1
            (tmp_path / "b.yaml").write_text(pod_text("b", "v2"))
            await until(lambda: len(receiver.updates) == 2)
            first, second = (update.pods for update in receiver.updates)
            assert [old is new for old, new in zip(first, second, strict=True)] == [True, False, True]

    asyncio.run(scenario())


def test_a_refused_update_is_sent_again(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))
    receiver = Receiver()
    failures: list[Exception] = [BadInput(Problem("cannot take it")), RuntimeError("a bug")]

    def send(update: PodUpdate) -> None:
        if failures:
            raise failures.pop()
        receiver.send(update)

    async def scenario() -> None:
        source = FileSource([tmp_path], "n1", SystemClock(), period_seconds=0.02)
        task = asyncio.create_task(source.run(send))
        await receiver.receives("web")
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_change_that_the_store_failed_to_process_is_processed_by_the_next_scan(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "web.yaml"
        path.write_text(pod_text("web", "old"))
        store = FailingStore()
        async with listening(tmp_path, objects=store, period=SOON) as (receiver, _):
            await receiver.receives("web")
            store.failures = 1
            path.write_text(pod_text("web", "new"))
            await until(lambda: receiver.images() == {"web": "new"})
            assert store.failures == 0

    asyncio.run(scenario())


class CountingClock(SystemClock):
    """Counts calls of `now`: one per scan."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def now(self) -> datetime:
        self.calls += 1
        return super().now()


def test_the_source_does_not_scan_without_a_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, clock, receiver = tmp_path / "web.yaml", CountingClock(), Receiver()
        path.write_text(pod_text("web", "old"))
        async with running(FileSource([tmp_path], "n1", clock, period_seconds=LONG), receiver):
            await receiver.receives("web")
            path.write_text(pod_text("web", "new"))
            await until(lambda: receiver.images() == {"web": "new"})
            await asyncio.sleep(0.1)
            scans = clock.calls
            await asyncio.sleep(0.3)
            assert clock.calls <= scans + 2

    asyncio.run(scenario())


def test_a_second_run_starts_with_a_set_and_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        source = FileSource([tmp_path], "n1", SystemClock())
        for _ in range(3):
            before = len(os.listdir("/proc/self/fd"))
            receiver = Receiver()
            async with running(source, receiver):
                await receiver.receives("web")
                assert len(os.listdir("/proc/self/fd")) == before + 1
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


def test_one_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path / "web.yaml", tmp_path, tmp_path / "." / "web.yaml") as (receiver, source):
            await receiver.receives("web")
            assert source.problems() == ()

    asyncio.run(scenario())


# Config maps and secrets beside the pods.


def test_config_maps_and_secrets_are_stored_before_the_pods_are_sent(tmp_path: Path) -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: prod}\nstringData: {word: hush}\n"
    needs = pod_text("web", more="    envFrom:\n    - configMapRef: {name: settings}\n")
    (tmp_path / "web.yaml").write_text(f"{needs}---\n{config_map_text('settings', 'v1')}---\n{secret}")
    objects, order = LocalObjects(), list[str]()
    objects.subscribe(lambda keys: order.extend(sorted(map(str, keys))))

    async def scenario() -> None:
        receiver = Receiver()
        source = FileSource([tmp_path], "n1", SystemClock(), objects=objects)

        def send(update: PodUpdate) -> None:
            order.append("pods")
            receiver.send(update)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(send))
            await receiver.receives("web")
            assert order == ["ConfigMap default/settings", "Secret prod/s", "pods"]
            assert source.problems() == ()
            assert (await objects.get(ConfigMap, "settings", "default")).data == {"key": "v1"}
            assert (await objects.get(Secret, "s", "prod")).data == {"word": "aHVzaA=="}
            (tmp_path / "web.yaml").write_text(f"{needs}---\n{config_map_text('settings', 'v2')}")
            await until(lambda: len(objects.objects()) == 1)
            assert (await objects.get(ConfigMap, "settings")).data == {"key": "v2"}
            with pytest.raises(NotFound):
                await objects.get(Secret, "s", "prod")
            assert order[3:] == ["ConfigMap default/settings", "Secret prod/s"]  # the pods have not changed
            task.cancel()

    asyncio.run(scenario())


def test_an_invalid_config_map_is_reported_and_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(config_map_text("settings", "v1"))
    objects = LocalObjects()

    async def scenario() -> None:
        async with listening(tmp_path, objects=objects) as (receiver, source):
            await receiver.receives()
            path.write_text(config_map_text("settings", "[v2]"))
            await until(lambda: bool(source.problems()))
            (problem,) = source.problems()
            assert (problem.field, problem.file, problem.line) == ("data.key", str(path), 6)
            assert (await objects.get(ConfigMap, "settings")).data == {"key": "v1"}

    asyncio.run(scenario())
