"""Reading a log: all of it or its end, while it grows, over rotations, until its container exits."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podkeeper.app.agent import Agent
from podkeeper.app.local.client import RequestFailed
from podkeeper.app.local.logs import LogFile, is_running, read_file
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.logs.reading import LogOptions
from podkeeper.runtimes.fake import FakeRuntime
from tests.app.local.harness import Harness, append, is_open, manifest
from tests.doubles import stand_in


def line(text: str, second: int = 0, stream: str = "stdout", tag: str = "F") -> bytes:
    return f"2026-11-15T10:00:{second:02}.000000000Z {stream} {tag} {text}\n".encode()


class Follower:
    """A follower of a file."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.received = b""
        self.may_grow = True
        self._options = LogOptions(follow=True, **options)
        self._path = path

    async def run(self) -> None:
        async for data in read_file(self._path, self._options, may_grow=lambda: self.may_grow):
            self.received += data

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.01)


def read(path: Path, **options: Any) -> bytes:
    async def all_of_it() -> bytes:
        wanted = LogOptions(**options)
        return b"".join([data async for data in read_file(path, wanted, may_grow=lambda: False)])

    return asyncio.run(all_of_it())


CASES: dict[str, tuple[dict[str, object], bytes]] = {
    "all of it": ({}, b"one\ntwo\nthree\n"),
    "the last lines": ({"tail_lines": 2}, b"two\nthree\n"),
    "no lines": ({"tail_lines": 0}, b""),
    "more lines than exist": ({"tail_lines": 9}, b"one\ntwo\nthree\n"),
    "a number of bytes": ({"limit_bytes": 5}, b"one\nt"),
    "one stream": ({"streams": frozenset({"stderr"})}, b"two\n"),
    "with times": ({"tail_lines": 1, "timestamps": True}, b"2026-11-15T10:00:03.000000000Z three\n"),
}


@pytest.mark.parametrize("options, expected", CASES.values(), ids=CASES.keys())
def test_options_of_a_log(tmp_path: Path, options: dict[str, object], expected: bytes) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line("one", 1) + line("two", 2, "stderr") + line("three", 3))
    assert read(path, **options) == expected


def test_partial_lines_are_joined_and_an_unfinished_line_is_returned_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line("be", tag="P") + line("gun") + line("half")[:-1])
    assert read(path) == b"begun\nhalf"


def test_a_log_longer_than_a_block_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(line(f"{number:05}") for number in range(20_000)))
    assert read(path) == b"".join(f"{number:05}\n".encode() for number in range(20_000))
    assert read(path, tail_lines=1) == b"19999\n"


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none.log") == b""


def test_a_follower_reads_over_rotation_and_truncation_until_the_container_exits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "0.log"

    async def scenario() -> None:
        follower = Follower(path)
        following = asyncio.create_task(follower.run())
        await asyncio.sleep(0)  # the follower waits for the file
        path.write_bytes(line("first") + line("half")[:-3])
        await follower.until(lambda: follower.received == b"first\n")
        append(path, line("half")[-3:])
        await follower.until(lambda: follower.received.endswith(b"half\n"))
        with path.open("ab") as old:
            path.rename(tmp_path / "0.log.20261115")
            old.write(line("last of the old"))
            old.flush()
            path.write_bytes(line("rotated"))
        await follower.until(lambda: follower.received.endswith(b"last of the old\nrotated\n"))
        path.write_bytes(line("x"))  # shorter than what was read, so it was truncated
        await follower.until(lambda: follower.received.endswith(b"rotated\nx\n"))
        append(path, line("farewell"))
        follower.may_grow = False
        async with asyncio.timeout(5):
            await following
        assert follower.received.endswith(b"x\nfarewell\n")

    asyncio.run(scenario())


def test_a_follower_begins_with_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line("one") + line("two"))

    async def scenario() -> None:
        follower = Follower(path, tail_lines=1)
        following = asyncio.create_task(follower.run())
        await follower.until(lambda: follower.received == b"two\n")
        append(path, line("three"))
        await follower.until(lambda: follower.received == b"two\nthree\n")
        following.cancel()

    asyncio.run(scenario())


# ---- through the agent ----


def test_the_log_of_a_container_and_of_its_previous_instance(it: Harness) -> None:
    it.write("crash.yaml", manifest("crash", lives={"app": {"after_seconds": 0.2, "exit_code": 1}}))
    it.until(lambda: it.status("crash") == "CrashLoopBackOff")
    it.log("crash", attempt=0).write_bytes(line("first instance"))
    it.log("crash", attempt=1).write_bytes(line("second instance"))
    where = ("containerLogs", "default", "crash", "app")
    # Between two instances the status has no current container, so the log is that of the last one.
    assert b"".join(it.client.stream(*where)) == b"second instance\n"
    assert b"".join(it.client.stream(*where, previous=True)) == b"second instance\n"


@pytest.mark.parametrize("state", RecordState)
def test_a_log_grows_until_its_container_is_known_to_have_exited(state: RecordState) -> None:
    containers = (
        ContainerRecord(id="c1", name="app", state=state),
        ContainerRecord(id="c0", name="app", state=RecordState.EXITED),
    )
    found = PodRecord(uid=PodUID("u"), name="web", namespace="default", containers=containers)
    agent = stand_in(Agent, SimpleNamespace(record={found.uid: found}.__getitem__))
    log = LogFile(Path("/log"), PodUID("u"), "c1")
    assert is_running(agent, log) is (state is not RecordState.EXITED)
    assert not is_running(agent, replace(log, container_id="c0"))
    assert not is_running(agent, replace(log, container_id="gone"))


def test_a_follower_of_a_container_reads_its_last_lines(it: Harness) -> None:
    it.write("job.yaml", manifest("job", policy="Never"))
    it.until(lambda: it.status("job") == "Running")
    it.log("job").write_bytes(line("hello"))
    received = it.client.stream("containerLogs", "default", "job", "app", follow=True)
    assert next(received) == b"hello\n"
    append(it.log("job"), line("bye"))
    it.end("job")
    assert b"".join(received) == b"bye\n"
    it.until(lambda: it.status("job") == "Completed")


REFUSALS = {
    "an unknown container": ("zz", {}, "it has: app"),
    "no previous instance": (
        "app",
        {"previous": True},
        'previous terminated container "app" in pod "web-n1" not found',
    ),
    "a tail that is not a number": ("app", {"tailLines": "many"}, 'tailLines: Invalid value: "many"'),
    "a number that does not fit in 64 bits": ("app", {"sinceSeconds": 2**63}, "sinceSeconds: Invalid value: "),
    "a number with 4,000 digits": ("app", {"sinceSeconds": "9" * 4000}, "an integer from 0 to 9223372036854775807"),
    "an invalid time": ("app", {"sinceTime": "yesterday"}, "RFC 3339"),
}


@pytest.mark.parametrize("container, query, message", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_missing_log_has_the_reason(it: Harness, container: str, query: dict[str, object], message: str) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    with pytest.raises(RequestFailed, match=message) as refused:
        list(it.client.stream("containerLogs", "default", "web", container, **query))
    assert refused.value.code == 400


def test_a_waiting_container_has_no_log_and_a_reason(it: Harness) -> None:
    assert isinstance(it.agent.engine.ports.runtime, FakeRuntime)
    it.agent.engine.ports.runtime.missing_images.update({"host", "host:latest"})
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") in ("ErrImagePull", "ImagePullBackOff"))
    with pytest.raises(RequestFailed, match=r'container "app" in pod "web-n1" is waiting to start: .*pull'):
        list(it.client.stream("containerLogs", "default", "web", "app"))


def test_the_log_is_closed_when_the_client_disconnects(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    path = it.log("web")
    path.write_bytes(line("hello"))
    received = it.client.stream("containerLogs", "default", "web", "app", follow=True)
    assert next(received) == b"hello\n"
    assert is_open(path)
    received.close()
    it.until(lambda: not is_open(path))
