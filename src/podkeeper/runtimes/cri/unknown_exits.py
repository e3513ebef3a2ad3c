"""Recover the exit status of containers that containerd reports as UNKNOWN.

This happens after a crash of containerd. If containerd is killed while it cleans up an exited container, it reports
UNKNOWN after its restart. Such a container is stopped here if it has no process.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Final

from podkeeper.rules.defaults.pod import GRACE_SECONDS
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.requests.labels import TERMINATION_GRACE
from podkeeper.runtimes.cri.schema import cri

log = logging.getLogger(__name__)

_PROCESSES: Final = Path("/proc")


async def recover_exit_status(calls: CriCalls, status: cri.ContainerStatus) -> cri.ContainerStatus:
    """Return the real exit status of an UNKNOWN container, or its unchanged status while it may run."""
    process = process_of(await calls.container_info(status.id))
    # A container that may still run is left to the engine, which handles it like the kubelet.
    if process is None or await asyncio.to_thread(runs, process, status.id):
        return status
    # Only StopContainer makes containerd read the exit code. The kubelet would do this at the next sync and then start
    # the container again, whatever its restart policy is, so a finished job would run twice.
    log.info("container %s has exited, but the runtime reports UNKNOWN; stopping it to get its exit code", status.id)
    # Use its grace period, as the kubelet does, in case the container runs in a PID namespace that is not visible here.
    await calls.stop_container(status.id, grace_of(status))
    return await calls.container_status(status.id)


def process_of(info: str) -> int | None:
    """Return the PID of a container's main process from the verbose status. None if it is not there."""
    try:
        status: Any = json.loads(info)
        process = status["pid"]
    except (ValueError, TypeError, KeyError):
        return None
    return process if isinstance(process, int) and process > 0 else None


def runs(process: int, container_id: str) -> bool:
    """Return whether a process exists and belongs to the container (PIDs are reused)."""
    try:
        # PIDs are reused, and containers of these runtimes have their ID in the path of their cgroup.
        return container_id in (_PROCESSES / str(process) / "cgroup").read_text()
    except OSError:
        return False


def grace_of(status: cri.ContainerStatus) -> int:
    """Return the grace period in a container's annotations, or the default."""
    text = status.annotations.get(TERMINATION_GRACE, "")
    return int(text) if text.isdecimal() else GRACE_SECONDS
