"""Find and read the log of a container.

    pod, container, previous? -> LogFile -> read_file -> bytes, as the container wrote them

The file is chosen as in the kubelet (`validateContainerLogStatus`), with the same errors. Rotated files
are read as one log (`log_follow`), in blocks, so that memory use does not depend on the size of the log. A follower
polls the file ten times per second, continues after rotations, and ends when the container has exited.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from podkeeper.app.agent import Agent
from podkeeper.app.local.log_follow import LogFollower
from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import ContainerStatus, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import RecordState, bare_container_id
from podkeeper.rules.logs.reading import LogOptions, ReadState, advance, begin
from podkeeper.rules.naming import container_log_path, pod_log_directory

POLL_SECONDS = 0.1


class NoLog(AgentError):
    """There is no log. The message has the reason."""


@dataclass(frozen=True, slots=True)
class LogFile:
    path: Path
    uid: PodUID
    container_id: str


def log_file(agent: Agent, pod: Pod, container: str, *, previous: bool = False) -> LogFile:
    """Return the log file of a container. The pod must have its status. Raises NoLog."""
    uid = PodUID(pod.metadata.uid or "")
    container_id = bare_container_id(_container_id(pod, container, previous=previous))
    records = agent.record(uid).containers
    attempt = next((each.restart_count for each in records if each.id == container_id), None)
    if attempt is None:
        raise NoLog(f'log of container "{container}" in pod "{pod.metadata.name}" not found: it has been removed')
    directory = pod_log_directory(agent.log_root, pod)
    return LogFile(Path(directory, container_log_path(container, attempt)), uid, container_id)


def is_running(agent: Agent, log: LogFile) -> bool:
    """Return whether a container may still write to its log."""
    records = agent.record(log.uid).containers
    return any(each.id == log.container_id and each.state is not RecordState.EXITED for each in records)


def _container_id(pod: Pod, container: str, *, previous: bool) -> str:
    status, name = _status_of(pod, container), pod.metadata.name
    state, before = status.state, status.last_state.terminated
    if previous:
        if before is None or not before.container_id:
            raise NoLog(f'previous terminated container "{container}" in pod "{name}" not found')
        return before.container_id
    if state.running is not None and status.container_id:
        return status.container_id
    if state.terminated is not None and state.terminated.container_id:
        return state.terminated.container_id
    if before is not None and before.container_id:
        return before.container_id
    if state.terminated is not None or before is not None:
        raise NoLog(f'container "{container}" in pod "{name}" is terminated')
    reason = "" if state.waiting is None else state.waiting.reason or ""
    explanation = {
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }.get(reason, reason)
    raise NoLog(f'container "{container}" in pod "{name}" is waiting to start: {explanation}')


def _status_of(pod: Pod, container: str) -> ContainerStatus:
    status = pod.status
    lists = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
    found = next((each for several in lists for each in several or () if each.name == container), None)
    if found is not None:
        return found
    spec = pod.spec
    known = [
        *(each.name for each in spec.init_containers or ()),
        *(each.name for each in spec.containers),
        *(each.name for each in spec.ephemeral_containers or ()),
    ]
    if container in known:
        raise NoLog(f'container "{container}" in pod "{pod.metadata.name}" is not available')
    raise NoLog(f"container {container} not found in pod {pod.metadata.name}; it has: {', '.join(known)}")


# ---- reading ----


async def read_file(path: Path, options: LogOptions, *, may_grow: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield a log in pieces. With `follow`, continue while `may_grow` returns true."""
    reading = begin(options)
    if reading is None:
        return
    file = LogFollower(path)
    try:
        while not await file.open_first(options):
            if not (options.follow and may_grow()):
                return
            await asyncio.sleep(POLL_SECONDS)
        unfinished = b""
        while True:
            is_last_read = not (
                options.follow and may_grow()
            )  # check before reading, so that the last lines are not missed
            async for block in file.blocks():
                *lines, unfinished = (unfinished + block).split(b"\n")
                reading, data = _take(reading, lines)
                if data:
                    yield data
                if reading is None:
                    return
            if file.has_more():
                continue
            if is_last_read:
                break
            await asyncio.sleep(POLL_SECONDS)
        if unfinished:
            _, data = _take(reading, [unfinished], end=b"")
            yield data
    finally:
        file.close()


def _take(reading: ReadState, lines: list[bytes], end: bytes = b"\n") -> tuple[ReadState | None, bytes]:
    wanted = []
    state: ReadState | None = reading
    for line in lines:
        if state is None:
            break
        state, chunk = advance(state, line + end)
        if chunk is not None:
            wanted.append(chunk.data)
    return state, b"".join(wanted)
