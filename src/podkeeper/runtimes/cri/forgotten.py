"""Containers of which a runtime does not know any more how they are: has one ended, it is made to find that out.

A containerd that is killed while it clears away a container that has just ended says UNKNOWN in its next life, for
ever: until it is asked to stop the container. Then it looks, and knows with which code it ended. So what is UNKNOWN and
has no process is stopped here. The reference would stop it at the pod's next pass, a minute later, and start it once
more, whatever its restart policy says: a job that was done would be done twice.

What is UNKNOWN and lives is left to the engine, which does with it as the reference does.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Final

from podkeeper.rules.defaults import GRACE_SECONDS
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.requests.labels import TERMINATION_GRACE
from podkeeper.runtimes.cri.schema import cri

log = logging.getLogger(__name__)

_PROCESSES: Final = Path("/proc")


async def remembered(calls: Calls, status: cri.ContainerStatus) -> cri.ContainerStatus:
    """The status of a container that was UNKNOWN: as it really ended, or as it was while it may live."""
    process = process_of(await calls.container_info(status.id))
    if process is None or await asyncio.to_thread(runs, process, status.id):
        return status
    log.info("container %s has ended, and the runtime does not know how: it is asked to find out", status.id)
    # With its grace: should it live after all, where we cannot see it, this is what the reference would do with it.
    await calls.stop_container(status.id, grace_of(status))
    return await calls.container_status(status.id)


def process_of(info: str) -> int | None:
    """The first process of a container, by what runtimes tell of it to people; None: it is not told."""
    try:
        told: Any = json.loads(info)
        process = told["pid"]
    except (ValueError, TypeError, KeyError):
        return None
    return process if isinstance(process, int) and process > 0 else None


def runs(process: int, container_id: str) -> bool:
    """Whether a process is there, and is not another one that got its number."""
    try:
        return container_id in (_PROCESSES / str(process) / "cgroup").read_text()
    except OSError:
        return False


def grace_of(status: cri.ContainerStatus) -> int:
    """How long a container may take to end: as it tells, or as long as pods usually may."""
    told = status.annotations.get(TERMINATION_GRACE, "")
    return int(told) if told.isdecimal() else GRACE_SECONDS
