"""A whole agent on a real container runtime that hangs, fails, loses answers, is slow or restarts.

Whatever happens: nothing is there twice, a container that ran is known to have run, and one pod's trouble stays its
own. That nothing is doubled, nor left in the end, is seen by `tests.runtimes.cri.house` in every scenario.
"""

import asyncio
import time
from pathlib import Path

import pytest

from tests.runtimes.cri.containerd import Containerd
from tests.runtimes.cri.cri_node import CriNode
from tests.runtimes.cri.house import House, in_a_house
from tests.runtimes.cri.proxy import AnswerLate, Deed, Delay, Hang, LoseAnswer, Refuse

pytestmark = pytest.mark.slow

JOB = "exit 7"
OTHERS = ("a", "b", "c", "d")
SOON_SECONDS = 20.0


# One pod's trouble stays its own.


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer", "ListContainers"])
def test_a_runtime_that_hangs_for_one_pod_starts_all_others(method: str, cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.proxy.trouble(method, Hang(), pod="stuck")
        house.create("stuck")
        await house.until(lambda name: house.proxy.count(method, name) > 0, "stuck")
        house.create(*OTHERS)
        await house.until(house.is_ready, *OTHERS, within=SOON_SECONDS)
        house.delete(*OTHERS)
        await house.until(house.is_gone, *OTHERS, within=SOON_SECONDS)
        assert not house.is_ready("stuck")
        house.proxy.lift()
        await house.until(house.is_ready, "stuck")
        assert house.starts("stuck") == 1

    in_a_house(cri_node, tmp_path, scenario)


@pytest.mark.parametrize("method", ["StopContainer", "StopPodSandbox", "RemovePodSandbox"])
def test_a_runtime_that_hangs_for_one_pod_stops_the_others(method: str, cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.create("stuck", *OTHERS)
        await house.until(house.is_ready, "stuck", *OTHERS)
        house.proxy.trouble(method, Hang(), pod="stuck")
        house.delete("stuck", *OTHERS)
        await house.until(house.is_gone, *OTHERS, within=SOON_SECONDS)
        await house.until(lambda name: house.proxy.count(method, name) > 0, "stuck")
        house.proxy.lift()
        await house.until(house.is_gone, "stuck")

    in_a_house(cri_node, tmp_path, scenario)


def test_a_runtime_that_is_slow_for_one_pod_is_quick_for_the_others(cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.proxy.trouble("*", Delay(1.0), pod="slow")
        house.create("slow", *OTHERS)
        await house.until(house.is_ready, *OTHERS, within=SOON_SECONDS)
        await house.until(house.is_ready, "slow")
        house.delete("slow", *OTHERS)
        await house.until(house.is_gone, *OTHERS, within=SOON_SECONDS)
        await house.until(house.is_gone, "slow")
        assert house.starts("slow") == 1

    in_a_house(cri_node, tmp_path, scenario)


# Every call fails once.


def test_when_every_call_fails_once_for_every_pod_all_of_them_still_run_and_end(
    cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(house: House) -> None:
        trouble = house.proxy.trouble("*", Refuse(), times=1, each=True)
        house.create("server")
        house.create("job", script=JOB, restart_policy="Never")
        await house.until(house.is_ready, "server")
        await house.until(house.has_ended, "job")
        assert (house.exit_code("job"), house.starts("job"), house.starts("server")) == (7, 1, 1)
        house.delete("server", "job")
        await house.until(house.is_gone, "server", "job")
        started = {"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox"}
        assert started <= {method for method, pod in trouble.done if pod == "server"}

    in_a_house(cri_node, tmp_path, scenario)


# Answers that never come, of calls that took effect.

UNHEARD = [
    pytest.param(LoseAnswer(), id="the connection breaks"),
    pytest.param(LoseAnswer(None), id="nobody ever answers"),
    pytest.param(AnswerLate(4.0), id="it is answered too late"),
]


@pytest.mark.parametrize("deed", UNHEARD)
@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer"])
def test_what_was_started_unheard_is_not_started_twice(
    method: str, deed: Deed, cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(house: House) -> None:
        troubles = [house.proxy.trouble(method, deed, pod=pod, times=1) for pod in ("server", "job")]
        house.create("server")
        house.create("job", script=JOB, restart_policy="Never")
        await house.until(house.is_ready, "server")
        await house.until(house.has_ended, "job")
        assert (house.exit_code("job"), house.starts("job"), house.starts("server")) == (7, 1, 1)
        assert [trouble.done.total() for trouble in troubles] == [1, 1]

    in_a_house(cri_node, tmp_path, scenario)


@pytest.mark.parametrize("deed", UNHEARD)
@pytest.mark.parametrize("method", ["StopContainer", "StopPodSandbox", "RemovePodSandbox"])
def test_what_was_stopped_unheard_is_gone_all_the_same(
    method: str, deed: Deed, cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(house: House) -> None:
        house.create("server")
        await house.until(house.is_ready, "server")
        trouble = house.proxy.trouble(method, deed, pod="server", times=1)
        house.delete("server")
        await house.until(house.is_gone, "server")
        await house.until(lambda _: trouble.done.total() == 1, "server")  # removals come after that
        assert house.starts("server") == 1

    in_a_house(cri_node, tmp_path, scenario)


# The runtime restarts.


def test_a_runtime_that_is_killed_in_the_middle_of_a_burst_doubles_and_loses_nothing(
    cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(house: House) -> None:
        servers = [f"server-{number}" for number in range(8)]
        jobs = [f"job-{number}" for number in range(4)]
        house.create(*servers[:2])
        await house.until(house.is_ready, *servers[:2])
        house.create(*servers[2:])
        house.create(*jobs, script=JOB, restart_policy="Never")
        await house.until(lambda _: house.proxy.count("StartContainer") >= 5, "")
        await asyncio.to_thread(house.node.kill)
        await asyncio.sleep(1.0)
        await house.node.start_again()
        await house.until(house.is_ready, *servers)
        await house.until(house.has_ended, *jobs)
        assert {name: house.starts(name) for name in servers[:2]} == dict.fromkeys(servers[:2], 1)
        assert {name: house.starts(name) for name in jobs} == dict.fromkeys(jobs, 1)
        assert {name: house.exit_code(name) for name in jobs} == dict.fromkeys(jobs, 7)

    in_a_house(cri_node, tmp_path, scenario)


def test_what_ends_while_there_is_no_runtime_is_seen_when_it_is_back(cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.create("job", script=f"sleep 2; {JOB}", restart_policy="Never")
        house.create("server")
        await house.until(lambda name: house.starts(name) == 1, "job", "server")
        await asyncio.to_thread(house.node.kill)
        house.delete("server")
        await asyncio.sleep(3.0)
        begun = time.monotonic()
        await house.node.start_again()
        await house.until(house.has_ended, "job")
        await house.until(house.is_gone, "server")
        assert time.monotonic() - begun < SOON_SECONDS
        assert (house.exit_code("job"), house.starts("job")) == (7, 1)

    in_a_house(cri_node, tmp_path, scenario)


def test_what_ended_and_is_forgotten_by_the_runtime_has_ended_once(cri_node: CriNode, tmp_path: Path) -> None:
    """As when containerd is killed in the very moment in which it clears away what has ended."""
    if not isinstance(cri_node, Containerd):
        pytest.skip("only containerd forgets in this way")

    async def scenario(house: House) -> None:
        waits = f"until test -e /ledger/go; do sleep 0.1; done; echo > /ledger/done; {JOB}"
        house.create("job", script=waits, restart_policy="Never")
        await house.until(house.is_ready, "job")
        await asyncio.to_thread(cri_node.kill)
        house.leave("go")
        await house.until(lambda _: house.has_left("done"), "job")
        await asyncio.sleep(1.0)  # until it is gone
        cri_node.lose_pipes()
        await cri_node.start_again()
        await house.until(house.has_ended, "job", within=SOON_SECONDS)
        assert (house.exit_code("job"), house.starts("job")) == (7, 1)

    in_a_house(cri_node, tmp_path, scenario)
