"""The whole agent on a real container runtime that hangs, fails, loses responses, is slow or restarts.

There are never duplicates, every run of a container is recorded, and faults of one pod do not affect others. In every
scenario, `agent_harness` checks for duplicates and leftovers.
"""

import asyncio
import time
from pathlib import Path

import pytest

from tests.runtimes.cri.agent_harness import AgentHarness, run_with_agent
from tests.runtimes.cri.containerd import Containerd
from tests.runtimes.cri.cri_node import CriNode
from tests.runtimes.cri.faults import Fault, Hang, Late, LateResponse, LoseResponse, Refuse

pytestmark = pytest.mark.slow

JOB = "exit 7"
OTHERS = ("a", "b", "c", "d")
SHORT_DEADLINE_SECONDS = 20.0


# One pod's trouble stays its own.


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer", "ListContainers"])
def test_a_hung_start_of_one_pod_does_not_delay_other_starts(method: str, cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(agent: AgentHarness) -> None:
        agent.proxy.inject(method, Hang(), pod="stuck")
        agent.create("stuck")
        await agent.until(lambda name: agent.proxy.count(method, name) > 0, "stuck")
        agent.create(*OTHERS)
        await agent.until(agent.is_ready, *OTHERS, within=SHORT_DEADLINE_SECONDS)
        agent.delete(*OTHERS)
        await agent.until(agent.is_gone, *OTHERS, within=SHORT_DEADLINE_SECONDS)
        assert not agent.is_ready("stuck")
        agent.proxy.clear_faults()
        await agent.until(agent.is_ready, "stuck")
        assert agent.starts("stuck") == 1

    run_with_agent(cri_node, tmp_path, scenario)


@pytest.mark.parametrize("method", ["StopContainer", "StopPodSandbox", "RemovePodSandbox"])
def test_a_hung_stop_of_one_pod_does_not_delay_other_stops(method: str, cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(agent: AgentHarness) -> None:
        agent.create("stuck", *OTHERS)
        await agent.until(agent.is_ready, "stuck", *OTHERS)
        agent.proxy.inject(method, Hang(), pod="stuck")
        agent.delete("stuck", *OTHERS)
        await agent.until(agent.is_gone, *OTHERS, within=SHORT_DEADLINE_SECONDS)
        await agent.until(lambda name: agent.proxy.count(method, name) > 0, "stuck")
        agent.proxy.clear_faults()
        await agent.until(agent.is_gone, "stuck")

    run_with_agent(cri_node, tmp_path, scenario)


def test_slow_calls_of_one_pod_do_not_delay_others(cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(agent: AgentHarness) -> None:
        agent.proxy.inject("*", Late(1.0), pod="slow")
        agent.create("slow", *OTHERS)
        await agent.until(agent.is_ready, *OTHERS, within=SHORT_DEADLINE_SECONDS)
        await agent.until(agent.is_ready, "slow")
        agent.delete("slow", *OTHERS)
        await agent.until(agent.is_gone, *OTHERS, within=SHORT_DEADLINE_SECONDS)
        await agent.until(agent.is_gone, "slow")
        assert agent.starts("slow") == 1

    run_with_agent(cri_node, tmp_path, scenario)


# Every call fails once.


def test_pods_run_and_end_although_every_call_fails_once(cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(agent: AgentHarness) -> None:
        inject = agent.proxy.inject("*", Refuse(), times=1, each=True)
        agent.create("server")
        agent.create("job", script=JOB, restart_policy="Never")
        await agent.until(agent.is_ready, "server")
        await agent.until(agent.has_ended, "job")
        assert (agent.exit_code("job"), agent.starts("job"), agent.starts("server")) == (7, 1, 1)
        agent.delete("server", "job")
        await agent.until(agent.is_gone, "server", "job")
        started = {"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox"}
        assert started <= {method for method, pod in inject.done if pod == "server"}

    run_with_agent(cri_node, tmp_path, scenario)


# Answers that never come, of calls that took effect.

UNHEARD = [
    pytest.param(LoseResponse(), id="the connection breaks"),
    pytest.param(LoseResponse(None), id="no response"),
    pytest.param(LateResponse(4.0), id="it is answered too late"),
]


@pytest.mark.parametrize("fault", UNHEARD)
@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer"])
def test_a_start_whose_response_was_lost_is_not_repeated(
    method: str, fault: Fault, cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(agent: AgentHarness) -> None:
        troubles = [agent.proxy.inject(method, fault, pod=pod, times=1) for pod in ("server", "job")]
        agent.create("server")
        agent.create("job", script=JOB, restart_policy="Never")
        await agent.until(agent.is_ready, "server")
        await agent.until(agent.has_ended, "job")
        assert (agent.exit_code("job"), agent.starts("job"), agent.starts("server")) == (7, 1, 1)
        assert [inject.done.total() for inject in troubles] == [1, 1]

    run_with_agent(cri_node, tmp_path, scenario)


@pytest.mark.parametrize("fault", UNHEARD)
@pytest.mark.parametrize("method", ["StopContainer", "StopPodSandbox", "RemovePodSandbox"])
def test_a_stop_whose_response_was_lost_took_effect(
    method: str, fault: Fault, cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(agent: AgentHarness) -> None:
        agent.create("server")
        await agent.until(agent.is_ready, "server")
        inject = agent.proxy.inject(method, fault, pod="server", times=1)
        agent.delete("server")
        await agent.until(agent.is_gone, "server")
        await agent.until(lambda _: inject.done.total() == 1, "server")  # removals come after that
        assert agent.starts("server") == 1

    run_with_agent(cri_node, tmp_path, scenario)


# The runtime restarts.


def test_a_runtime_killed_during_a_burst_neither_duplicates_nor_loses_containers(
    cri_node: CriNode, tmp_path: Path
) -> None:
    async def scenario(agent: AgentHarness) -> None:
        servers = [f"server-{number}" for number in range(8)]
        jobs = [f"job-{number}" for number in range(4)]
        agent.create(*servers[:2])
        await agent.until(agent.is_ready, *servers[:2])
        agent.create(*servers[2:])
        agent.create(*jobs, script=JOB, restart_policy="Never")
        await agent.until(lambda _: agent.proxy.count("StartContainer") >= 5, "")
        await asyncio.to_thread(agent.node.kill)
        await asyncio.sleep(1.0)
        await agent.node.start_again()
        await agent.until(agent.is_ready, *servers)
        await agent.until(agent.has_ended, *jobs)
        assert {name: agent.starts(name) for name in servers[:2]} == dict.fromkeys(servers[:2], 1)
        assert {name: agent.starts(name) for name in jobs} == dict.fromkeys(jobs, 1)
        assert {name: agent.exit_code(name) for name in jobs} == dict.fromkeys(jobs, 7)

    run_with_agent(cri_node, tmp_path, scenario)


def test_an_exit_while_the_runtime_is_down_is_found_later(cri_node: CriNode, tmp_path: Path) -> None:
    async def scenario(agent: AgentHarness) -> None:
        agent.create("job", script=f"sleep 2; {JOB}", restart_policy="Never")
        agent.create("server")
        await agent.until(lambda name: agent.starts(name) == 1, "job", "server")
        await asyncio.to_thread(agent.node.kill)
        agent.delete("server")
        await asyncio.sleep(3.0)
        begun = time.monotonic()
        await agent.node.start_again()
        await agent.until(agent.has_ended, "job")
        await agent.until(agent.is_gone, "server")
        assert time.monotonic() - begun < SHORT_DEADLINE_SECONDS
        assert (agent.exit_code("job"), agent.starts("job")) == (7, 1)

    run_with_agent(cri_node, tmp_path, scenario)


def test_an_exit_that_the_runtime_lost_is_recovered_once(cri_node: CriNode, tmp_path: Path) -> None:
    """Simulate a kill of containerd while it handles the exit of containers."""
    if not isinstance(cri_node, Containerd):
        pytest.skip("only containerd loses exits in this way")

    async def scenario(agent: AgentHarness) -> None:
        waits = f"until test -e /markers/go; do sleep 0.1; done; echo > /markers/done; {JOB}"
        agent.create("job", script=waits, restart_policy="Never")
        await agent.until(agent.is_ready, "job")
        await asyncio.to_thread(cri_node.kill)
        agent.touch("go")
        await agent.until(lambda _: agent.has_file("done"), "job")
        await asyncio.sleep(1.0)  # until it is removed
        cri_node.lose_pipes()
        await cri_node.start_again()
        await agent.until(agent.has_ended, "job", within=SHORT_DEADLINE_SECONDS)
        assert (agent.exit_code("job"), agent.starts("job")) == (7, 1)

    run_with_agent(cri_node, tmp_path, scenario)
