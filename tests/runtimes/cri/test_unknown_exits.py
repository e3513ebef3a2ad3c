"""Recovery of the exit status of containers that containerd reports as UNKNOWN."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from podkeeper.model.runtime import RecordState
from podkeeper.rules.defaults.pod import GRACE_SECONDS
from podkeeper.runtimes.cri.requests.labels import TERMINATION_GRACE
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.unknown_exits import grace_of, process_of, runs
from tests.runtimes.cri.cri_pod import CriPod, runtime_on_fake
from tests.runtimes.cri.fake_server import FakeCri

MINE = Path("/proc/self/cgroup").read_text().splitlines()[0]
"""A line of this process's cgroups. The cgroups of a container contain its ID in the same way."""


def dead_process() -> int:
    """Return the PID of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def see(process: int | None, known_id: str = "") -> tuple[RecordState, int, list[int]]:
    """Inspect a container whose exit status 7 was lost. Return its state, exit code and the timeouts of its stops."""

    async def scenario() -> tuple[RecordState, int, list[int]]:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            cri_pod = CriPod(runtime, termination_grace_period_seconds=11)
            made = await cri_pod.start()
            container_id = known_id or made
            status = fake.containers[container_id] = fake.containers.pop(made)
            fake.sandbox_of[container_id] = fake.sandbox_of.pop(made)
            status.id, status.state = container_id, cri.CONTAINER_UNKNOWN
            fake.lost_exit_codes[container_id] = 7
            if process is not None:
                fake.processes[container_id] = process
            (seen,) = (await cri_pod.record()).containers
            return (
                seen.state,
                seen.exit_code,
                [request.timeout for call, request in fake.calls if call == "StopContainer"],
            )

    return asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_unknown_container_without_process_gets_its_exit_code() -> None:
    assert see(dead_process()) == (RecordState.EXITED, 7, [11])


def test_an_unknown_container_whose_pid_was_reused_has_exited() -> None:
    assert see(os.getpid()) == (RecordState.EXITED, 7, [11])


def test_an_unknown_container_that_may_run_is_not_stopped() -> None:
    assert see(os.getpid(), known_id=MINE) == (RecordState.UNKNOWN, 0, [])
    assert see(None) == (RecordState.UNKNOWN, 0, [])


@pytest.mark.parametrize(
    ("reported", "process"),
    [
        (json.dumps({"pid": 12}), 12),
        (json.dumps({"pid": 0}), None),  # it never got as far
        (json.dumps({"pid": "12"}), None),
        (json.dumps({}), None),
        (json.dumps([]), None),
        ("", None),
        ("not json", None),
    ],
)
def test_the_pid_is_in_the_verbose_status(reported: str, process: int | None) -> None:
    assert process_of(reported) == process


def test_a_process_runs_in_its_own_container_only() -> None:
    assert runs(os.getpid(), MINE)
    assert not runs(os.getpid(), "another container")
    assert not runs(dead_process(), MINE)


@pytest.mark.parametrize(("reported", "seconds"), [("5", 5), ("0", 0), ("", GRACE_SECONDS), ("soon", GRACE_SECONDS)])
def test_an_unknown_container_is_stopped_with_its_grace_period(reported: str, seconds: int) -> None:
    assert grace_of(cri.ContainerStatus(annotations={TERMINATION_GRACE: reported})) == seconds
    assert grace_of(cri.ContainerStatus()) == GRACE_SECONDS
