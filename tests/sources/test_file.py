"""Pods from real files: what is told, what is reported, and that no way of writing a file stops a pod."""

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
from tests.sources.static_listener import FailingStore, Listener, config_map_text, pod_text, running, until

SOON = 0.05
LONG = 60.0  # so long a period never comes: what is seen, the kernel told


@asynccontextmanager
async def listening(
    *paths: Path, objects: LocalObjects | None = None, period: float = LONG
) -> AsyncIterator[tuple[Listener, FileSource]]:
    listener = Listener()
    source = FileSource(paths, "n1", SystemClock(), objects=objects, period_seconds=period, report=listener.report)
    async with running(source, listener):
        yield listener, source


def test_a_directory_is_told_in_order_and_a_file_may_hold_many_documents(tmp_path: Path) -> None:
    two = (
        '{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p1"}, "spec": {"containers": [%s]}}]}'
    )
    (tmp_path / "b.json").write_text(two % '{"name": "app", "image": "host"}')
    (tmp_path / "a.yaml").write_text(f"{pod_text('z')}---\n# nothing\n---\n{pod_text('w')}")
    items = pod_text("x").replace("\n", "\n    ")
    (tmp_path / "c").write_text(f"apiVersion: v1\nkind: List\nitems:\n  - {items}\n")

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("z", "w", "p1", "x")
            assert len(listener.told) == 1
            assert source.problems() == ()
            assert {pod.metadata.namespace for pod in listener.told[0].pods} == {"default"}

    asyncio.run(scenario())


def test_the_same_files_are_the_same_pods_after_a_restart_and_elsewhere_others(tmp_path: Path) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "web.yaml").write_text(pod_text("web"))

    async def uid_in(place: str) -> str | None:
        async with listening(tmp_path / place) as (listener, _):
            await listener.hears("web")
            return listener.told[0].pods[0].metadata.uid

    assert asyncio.run(uid_in("here")) == asyncio.run(uid_in("here"))
    assert asyncio.run(uid_in("here")) != asyncio.run(uid_in("there"))


def test_a_missing_path_is_reported_once_and_watched(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "manifests"

    async def scenario() -> None:
        async with listening(path) as (listener, source):
            await listener.hears()
            (problem,) = source.problems()
            assert problem.file == str(path)
            assert "no such file or directory" in problem.message
            path.mkdir(parents=True)
            (path / "web.yaml").write_text(pod_text("web"))
            await listener.hears("web")
            assert source.problems() == ()
            assert [place for place, _ in listener.reports] == [str(path)] * 2  # missing, and mended

    asyncio.run(scenario())


def test_a_directory_that_is_removed_and_made_again_is_still_watched(tmp_path: Path) -> None:
    path = tmp_path / "manifests"
    path.mkdir()
    (path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(path) as (listener, source):
            await listener.hears("web")
            (path / "web.yaml").unlink()
            path.rmdir()
            await listener.hears()
            await until(lambda: bool(source.problems()))
            path.mkdir()
            (path / "db.yaml").write_text(pod_text("db"))
            await listener.hears("db")

    asyncio.run(scenario())


def test_a_single_file_is_followed_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))
    (tmp_path / "other.yaml").write_text(pod_text("other"))

    async def scenario() -> None:
        async with listening(path) as (listener, _):
            await listener.hears("web")
            (tmp_path / "new.yaml").write_text(pod_text("web", "new"))
            (tmp_path / "new.yaml").rename(path)
            await until(lambda: listener.images() == {"web": "new"})
            path.unlink()
            await listener.hears()

    asyncio.run(scenario())


IGNORED = (".hidden.yaml", "web.yaml~", "#web.yaml#", "web.yaml.swp", "web.yaml.bak", "web.yaml.dpkg-old", "x.tmp")


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_hidden_or_left_over_is_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(pod_text("old"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears()
            (tmp_path / "web.yaml").write_text(pod_text("web"))
            await listener.hears("web")
            assert source.problems() == ()

    asyncio.run(scenario())


# A file that cannot be used.

BROKEN: dict[str, tuple[bytes, int, str]] = {
    "text that is no YAML": (b"kind: Pod\nmetadata: [\n", 3, "cannot parse YAML"),
    "text that is no text": (b"a: \xff\xfe\n", 1, "UTF-8"),
    "nothing at all": (b"", 0, "the manifest is empty"),
    "an invalid pod": (pod_text("web").replace("name: app", "name: App").encode(), 7, "Invalid value: "),
    "a pod without a name": (pod_text("web").replace("  name: web", "  labels: {}").encode(), 3, "needs a name"),
    "a wrong type": (pod_text("web", more="    args: yes\n").encode(), 9, "must be a list"),
    "a misspelt kind": (pod_text("web").replace("Pod", "pod").encode(), 2, "did you mean Pod?"),
    "an unknown version": (pod_text("web").replace("v1", "v9").encode(), 1, 'supported values: "v1"'),
    "no kind": (b"a: 1\n", 1, "Required value"),
    "one name twice": (f"{pod_text('web')}---\n{pod_text('web')}".encode(), 13, "is defined twice in this manifest"),
    "a reference to what no API has": (
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
        async with listening(tmp_path) as (listener, source):
            await listener.hears("other", "web", "db")
            path.write_bytes(text)
            await until(lambda: bool(source.problems()))
            problem = source.problems()[0]
            assert (problem.file, problem.line) == (str(path), line)
            assert reason in problem.message
            (tmp_path / "later.yaml").write_text(pod_text("later"))
            await until(lambda: "later" in listener.names())
            assert {"web", "db"} <= set(listener.names())
            path.write_text(pod_text("web", "mended"))
            await until(lambda: listener.images().get("web") == "mended")
            assert source.problems() == ()
            assert "db" not in listener.names()

    asyncio.run(scenario())


def test_a_broken_file_that_is_removed_takes_its_pods_with_it(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web")
            path.write_text("{")
            await until(lambda: bool(source.problems()))
            path.unlink()
            await listener.hears()
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_problem_is_reported_once_per_change_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text("kind: [")

    async def scenario() -> None:
        async with listening(tmp_path, period=0.02) as (listener, source):
            await listener.hears()
            await asyncio.sleep(0.1)  # some periods long
            assert len(listener.reports) == 1
            path.write_text("kind: [ ")
            await until(lambda: len(listener.reports) == 2)
            assert {problems for _, problems in listener.reports} == {source.problems()}
            path.write_text(pod_text("web"))
            await listener.hears("web")
            await asyncio.sleep(0.1)
            assert listener.reports[2:] == [(str(path), ())]

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
    "a link to nowhere": make_dangling,
    "a file too large": make_huge,
    "a file without permission": make_unreadable,
}


@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_cannot_be_read_is_not_gone(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web")
            spoil(path)
            await until(lambda: bool(source.problems()))
            (tmp_path / "later.yaml").write_text(pod_text("later"))
            await listener.hears("later", "web")

    asyncio.run(scenario())


def test_pipes_and_folders_are_named_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web")
            assert [Path(problem.file).name for problem in source.problems()] == ["folder", "pipe"]

    asyncio.run(scenario())


def test_other_kinds_are_passed_over_and_said(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
    path.write_text(f"{service}---\n{pod_text('web')}---\n{pod_text('db')}")

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web", "db")
            assert [(problem.field, problem.line) for problem in source.problems()] == [("kind", 2)]
            path.write_text(f"{service}---\n{pod_text('db')}")  # a Service is no reason to keep what is gone
            await listener.hears("db")

    asyncio.run(scenario())


def test_commenting_a_manifest_out_ends_its_pods(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web")
            path.write_text("".join(f"# {line}\n" for line in pod_text("web").splitlines()))
            await listener.hears()
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_name_belongs_to_the_file_that_had_it_first(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(pod_text("web", "m"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web")
            (tmp_path / "a.yaml").write_text(pod_text("web", "a"))
            await until(lambda: bool(source.problems()))
            (problem,) = source.problems()
            assert (problem.file, problem.line) == (str(tmp_path / "a.yaml"), 4)
            assert problem.message.endswith(f"Pod default/web is already defined in {tmp_path / 'm.yaml'}")
            assert listener.images() == {"web": "m"}
            (tmp_path / "m.yaml").unlink()
            await until(lambda: listener.images() == {"web": "a"})
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
def test_whoever_writes_a_file_its_pods_never_vanish_and_no_half_is_told(
    tmp_path: Path, write: Callable[[Path, str], Awaitable[None]]
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(f"{pod_text('web', 'v1')}---\n{pod_text('db', 'v1')}")

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web", "db")
            await write(path, f"{pod_text('web', 'v2', '    args: [a]')}\n---\n{pod_text('db', 'v2')}")
            await until(lambda: listener.images() == {"web": "v2", "db": "v2"})
            seen = [[pod.spec.containers[0].image for pod in update.pods] for update in listener.told]
            assert seen == [["v1", "v1"], ["v2", "v2"]]
            assert source.problems() == ()
            assert listener.reports == []

    asyncio.run(scenario())


def test_a_new_file_is_read_when_it_is_whole_or_its_writer_falls_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with listening(tmp_path) as (listener, _):
            await listener.hears()
            with (tmp_path / "web.yaml").open("w") as file:
                file.write(pod_text("web"))
                file.flush()
                await asyncio.sleep(SOON)
                assert listener.names() == []
                await listener.hears("web")  # still open

    asyncio.run(scenario())


def test_a_hard_link_is_found_although_nobody_closes_it(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, _):
            await listener.hears()
            (tmp_path / "web.yaml").hardlink_to(tmp_path / ".hidden")
            await listener.hears("web")

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


def test_a_config_map_volume_is_followed_through_its_swaps(tmp_path: Path) -> None:
    config_map_volume(tmp_path, "one", {"web.yaml": pod_text("web", "v1")})

    async def scenario() -> None:
        async with listening(tmp_path) as (listener, source):
            await listener.hears("web")
            config_map_volume(tmp_path, "two", {"web.yaml": pod_text("web", "v2"), "db.yaml": pod_text("db")})
            await until(lambda: listener.images() == {"web": "v2", "db": "host"})
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_directory_behind_a_link_is_followed_when_the_link_turns(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version / "manifests").mkdir(parents=True)
        (tmp_path / version / "manifests" / "web.yaml").write_text(pod_text("web", version))
    current = tmp_path / "current"
    current.symlink_to("v1")

    async def scenario() -> None:
        async with listening(current / "manifests") as (listener, _):
            await until(lambda: bool(listener.told) and listener.images() == {"web": "v1"})
            (tmp_path / "next").symlink_to(tmp_path / "v2")
            (tmp_path / "next").rename(current)
            await until(lambda: listener.images() == {"web": "v2"})
            (tmp_path / "v2" / "manifests" / "db.yaml").write_text(pod_text("db"))
            await listener.hears("db", "web")

    asyncio.run(scenario())


def test_what_the_kernel_does_not_tell_the_period_finds(tmp_path: Path) -> None:
    elsewhere, directory = tmp_path / "elsewhere.yaml", tmp_path / "manifests"
    elsewhere.write_text(pod_text("web", "v1"))
    directory.mkdir()
    (directory / "web.yaml").symlink_to(elsewhere)  # what lies behind a link to elsewhere is not watched

    async def scenario() -> None:
        async with listening(directory, period=0.1) as (listener, _):
            await listener.hears("web")
            elsewhere.write_text(pod_text("web", "v2"))
            await until(lambda: listener.images() == {"web": "v2"})

    asyncio.run(scenario())


# What is told, and to whom.


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(pod_text(name))

    async def scenario() -> None:
        async with listening(tmp_path, period=0.02) as (listener, _):
            await listener.hears("a", "b", "c")
            await asyncio.sleep(0.1)
            assert len(listener.told) == 1
            (tmp_path / "b.yaml").write_text(pod_text("b", "v2"))
            await until(lambda: len(listener.told) == 2)
            first, second = (update.pods for update in listener.told)
            assert [old is new for old, new in zip(first, second, strict=True)] == [True, False, True]

    asyncio.run(scenario())


def test_whoever_fails_to_take_a_word_hears_it_again(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))
    listener = Listener()
    failures: list[Exception] = [BadInput(Problem("cannot take it")), RuntimeError("a bug")]

    def tell(update: PodUpdate) -> None:
        if failures:
            raise failures.pop()
        listener.tell(update)

    async def scenario() -> None:
        source = FileSource([tmp_path], "n1", SystemClock(), period_seconds=0.02)
        task = asyncio.create_task(source.run(tell))
        await listener.hears("web")
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_change_that_the_store_failed_to_take_is_taken_by_the_next_survey(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "web.yaml"
        path.write_text(pod_text("web", "old"))
        store = FailingStore()
        async with listening(tmp_path, objects=store, period=SOON) as (listener, _):
            await listener.hears("web")
            store.failures = 1
            path.write_text(pod_text("web", "new"))
            await until(lambda: listener.images() == {"web": "new"})
            assert store.failures == 0

    asyncio.run(scenario())


class CountingClock(SystemClock):
    """Counts how often the time is asked for: once per survey."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def now(self) -> datetime:
        self.asked += 1
        return super().now()


def test_after_a_change_the_source_rests_until_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, clock, listener = tmp_path / "web.yaml", CountingClock(), Listener()
        path.write_text(pod_text("web", "old"))
        async with running(FileSource([tmp_path], "n1", clock, period_seconds=LONG), listener):
            await listener.hears("web")
            path.write_text(pod_text("web", "new"))
            await until(lambda: listener.images() == {"web": "new"})
            await asyncio.sleep(0.1)
            surveys = clock.asked
            await asyncio.sleep(0.3)
            assert clock.asked <= surveys + 2

    asyncio.run(scenario())


def test_a_source_that_runs_again_begins_with_a_set_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        source = FileSource([tmp_path], "n1", SystemClock())
        for _ in range(3):
            before = len(os.listdir("/proc/self/fd"))
            listener = Listener()
            async with running(source, listener):
                await listener.hears("web")
                assert len(os.listdir("/proc/self/fd")) == before + 1
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


def test_one_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def scenario() -> None:
        async with listening(tmp_path / "web.yaml", tmp_path, tmp_path / "." / "web.yaml") as (listener, source):
            await listener.hears("web")
            assert source.problems() == ()

    asyncio.run(scenario())


# Config maps and secrets beside the pods.


def test_config_maps_and_secrets_are_there_before_the_pods_that_need_them(tmp_path: Path) -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: prod}\nstringData: {word: hush}\n"
    needs = pod_text("web", more="    envFrom:\n    - configMapRef: {name: settings}\n")
    (tmp_path / "web.yaml").write_text(f"{needs}---\n{config_map_text('settings', 'v1')}---\n{secret}")
    objects, order = LocalObjects(), list[str]()
    objects.subscribe(lambda keys: order.extend(sorted(map(str, keys))))

    async def scenario() -> None:
        listener = Listener()
        source = FileSource([tmp_path], "n1", SystemClock(), objects=objects)

        def tell(update: PodUpdate) -> None:
            order.append("pods")
            listener.tell(update)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(tell))
            await listener.hears("web")
            assert order == ["ConfigMap default/settings", "Secret prod/s", "pods"]
            assert source.problems() == ()
            assert (await objects.get(ConfigMap, "settings", "default")).data == {"key": "v1"}
            assert (await objects.get(Secret, "s", "prod")).data == {"word": "aHVzaA=="}
            (tmp_path / "web.yaml").write_text(f"{needs}---\n{config_map_text('settings', 'v2')}")
            await until(lambda: len(objects.objects()) == 1)
            assert (await objects.get(ConfigMap, "settings")).data == {"key": "v2"}
            with pytest.raises(NotFound):
                await objects.get(Secret, "s", "prod")
            assert order[3:] == ["ConfigMap default/settings", "Secret prod/s"]  # the pods are the same
            task.cancel()

    asyncio.run(scenario())


def test_a_broken_config_map_is_named_and_keeps_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(config_map_text("settings", "v1"))
    objects = LocalObjects()

    async def scenario() -> None:
        async with listening(tmp_path, objects=objects) as (listener, source):
            await listener.hears()
            path.write_text(config_map_text("settings", "[v2]"))
            await until(lambda: bool(source.problems()))
            (problem,) = source.problems()
            assert (problem.field, problem.file, problem.line) == ("data.key", str(path), 6)
            assert (await objects.get(ConfigMap, "settings")).data == {"key": "v1"}

    asyncio.run(scenario())
