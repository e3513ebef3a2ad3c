"""Containers of which the runtime does not know how they are: those that have ended are known to have ended."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from podkeeper.model.runtime import ContainerState
from podkeeper.rules.defaults import GRACE_SECONDS
from podkeeper.runtimes.cri.forgotten import grace_of, process_of, runs
from podkeeper.runtimes.cri.requests.labels import TERMINATION_GRACE
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.fake_server import FakeCri
from tests.runtimes.cri.scenes import Scene, with_fake

MINE = Path("/proc/self/cgroup").read_text().splitlines()[0]
"""Something that stands in the list of this process's cgroups, as an id of a container does in that of its own."""


def dead_process() -> int:
    """The number of a process that was."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def see(process: int | None, told_id: str = "") -> tuple[ContainerState, int, list[int]]:
    """A container that ended with 7 unnoticed: how it is seen, with which code, and the graces of its stops."""

    async def scenario() -> tuple[ContainerState, int, list[int]]:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            scene = Scene(runtime, termination_grace_period_seconds=11)
            made = await scene.start()
            container_id = told_id or made
            status = fake.containers[container_id] = fake.containers.pop(made)
            fake.homes[container_id] = fake.homes.pop(made)
            status.id, status.state = container_id, cri.CONTAINER_UNKNOWN
            fake.unnoticed[container_id] = 7
            if process is not None:
                fake.processes[container_id] = process
            (seen,) = (await scene.record()).containers
            return seen.state, seen.exit_code, [asked.timeout for call, asked in fake.calls if call == "StopContainer"]

    return asyncio.run(asyncio.wait_for(scenario(), 60))


def test_one_that_has_ended_is_seen_as_it_ended() -> None:
    assert see(dead_process()) == (ContainerState.EXITED, 7, [11])


def test_one_whose_process_number_somebody_else_has_by_now_has_ended() -> None:
    assert see(os.getpid()) == (ContainerState.EXITED, 7, [11])


def test_one_that_may_live_is_left_alone() -> None:
    assert see(os.getpid(), told_id=MINE) == (ContainerState.UNKNOWN, 0, [])
    assert see(None) == (ContainerState.UNKNOWN, 0, [])


@pytest.mark.parametrize(
    ("told", "process"),
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
def test_which_process_it_had_is_told_to_people(told: str, process: int | None) -> None:
    assert process_of(told) == process


def test_a_process_runs_in_its_own_container_only() -> None:
    assert runs(os.getpid(), MINE)
    assert not runs(os.getpid(), "another container")
    assert not runs(dead_process(), MINE)


@pytest.mark.parametrize(("told", "seconds"), [("5", 5), ("0", 0), ("", GRACE_SECONDS), ("soon", GRACE_SECONDS)])
def test_it_has_its_pods_grace(told: str, seconds: int) -> None:
    assert grace_of(cri.ContainerStatus(annotations={TERMINATION_GRACE: told})) == seconds
    assert grace_of(cri.ContainerStatus()) == GRACE_SECONDS
