"""Pains 8, 9, 12 and 20: restarts of the agent or the machine."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from podkeeper.model.k8s.core import GRPCAction, HTTPGetAction, TCPSocketAction
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import Endpoint, HealthAnswer, HttpAnswer, HttpRequest
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import SimNode, pod, published_changes, run_scenario

FAILS = Behaviour(exec=(ExecStep(exit_code=1),))
network_probe = partial(probe, exec=None, initial_delay_seconds=30)


def _answers(world: World) -> None:
    """Only port 80 answers."""

    def http(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200 if ":80/" in request.url else 500)

    def tcp(endpoint: Endpoint) -> str | None:
        return None if endpoint.port == 80 else "connection refused"

    def grpc(endpoint: Endpoint, service: str) -> HealthAnswer:
        return HealthAnswer(1 if endpoint.port == 80 else 2)

    world.prober.http_script, world.prober.tcp_script, world.prober.grpc_script = http, tcp, grpc


PODS = {
    "plain": pod("plain"),
    "exec": pod("exec", container(readiness=probe(initial_delay_seconds=30))),
    "exec-unready": pod(
        "exec-unready", container(readiness=probe(initial_delay_seconds=30)), behaviours={"app": FAILS}
    ),
    "http": pod("http", container(readiness=network_probe(http_get=HTTPGetAction(port=80)))),
    "http-unready": pod("http-unready", container(readiness=network_probe(http_get=HTTPGetAction(port=81)))),
    "tcp": pod("tcp", container(readiness=network_probe(tcp_socket=TCPSocketAction(port=80)))),
    "tcp-unready": pod("tcp-unready", container(readiness=network_probe(tcp_socket=TCPSocketAction(port=81)))),
    "grpc": pod("grpc", container(readiness=network_probe(grpc=GRPCAction(port=80)))),
    "grpc-unready": pod("grpc-unready", container(readiness=network_probe(grpc=GRPCAction(port=81)))),
    "startup": pod(
        "startup", container(startup=probe(period=5), readiness=probe(initial_delay_seconds=30), liveness=probe())
    ),
    "not-started": pod("not-started", container(startup=probe(failures=9999)), behaviours={"app": FAILS}),
    "half": pod("half", container(), container("side", readiness=probe()), behaviours={"side": FAILS}),
    "sidecar": pod(
        "sidecar", container(), init=(container("mesh", readiness=probe(initial_delay_seconds=30), sidecar=True),)
    ),
}


@pytest.mark.parametrize("away", [0.2, 5.0, 120.0])
def test_a_restart_of_the_agent_changes_no_ready_condition(away: float) -> None:
    """Pain 8: k/k 100277, 135795; probes of all kinds, with initial delays; ready pods and unready ones."""

    async def scenario(node: SimNode) -> None:
        node.put(*PODS.values())
        await asyncio.sleep(90)
        ready = {name for name in PODS if node.is_ready(name)}
        assert ready == {"plain", "exec", "http", "tcp", "grpc", "startup", "sidecar"}
        changes = node.changes()
        for _ in range(3):
            await node.restart_agent(away)
            await asyncio.sleep(70)
        assert published_changes(changes) == []
        assert all(len(node.runs_of(node.uid(name))) == 1 for name in PODS)

    run_scenario(scenario, prepare=_answers)


def test_a_pod_that_became_unready_before_a_restart_stays_unready() -> None:
    """Pain 8: k/k 135795; the API is down when the probe fails, and answers the new agent."""

    async def scenario(node: SimNode) -> None:
        run = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=50, exit_code=1)))
        node.put(pod("web", container(readiness=probe(failures=1)), behaviours={"app": run}))
        await node.until(lambda: node.is_ready("web"), within=15)
        await asyncio.sleep(45 - node.world.now())
        node.api.go_down()
        await asyncio.sleep(20)
        changes = node.changes()
        node.world.crash(downtime_seconds=2)
        node.api.come_up()
        await node.until(lambda: not node.is_ready("web"), within=5)
        await asyncio.sleep(60)
        assert len(published_changes(changes)) == 1

    run_scenario(scenario)


# 9: terminal phase reverts; success reported for a container that never ran; exit codes lost.


def _phases(changes: list[PodChanged], name: str) -> list[str]:
    """Return the phases of a pod, without repetitions."""
    phases: list[str] = []
    for change in changes:
        pod = change.new
        if pod is not None and pod.metadata.name == name and [pod.status.phase] != phases[-1:]:
            phases.append(pod.status.phase or "")
    return phases


async def _garbage(node: SimNode, uid: PodUID) -> None:
    for run in node.runs_of(uid):
        if run.removed is None:
            await node.runtime.remove_container(run.id)


async def _reboot(node: SimNode, uid: PodUID) -> None:
    node.world.reboot(downtime_seconds=5)
    await asyncio.sleep(6)


async def _crash(node: SimNode, uid: PodUID) -> None:
    await node.restart_agent()


async def _crash_and_garbage(node: SimNode, uid: PodUID) -> None:
    node.world.crash(downtime_seconds=5)
    await _garbage(node, uid)
    await asyncio.sleep(6)


AFTERWARDS = {
    "its containers are removed": _garbage,
    "the agent restarts": _crash,
    "the agent restarts and finds nothing": _crash_and_garbage,
    "the machine restarts": _reboot,
}


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS.keys())
@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_terminal_pod_keeps_its_phase_and_exit_code(
    exit_code: int, afterwards: Callable[[SimNode, PodUID], object]
) -> None:
    """Pain 9: k/k 58711, PR 88440, 116410."""

    async def scenario(node: SimNode) -> None:
        changes = node.changes()
        uid = node.put(pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=5, exit_code=exit_code)}))
        over = "Failed" if exit_code else "Succeeded"
        await node.until(lambda: node.phase("job") == over, within=10)
        await afterwards(node, uid)  # type: ignore[misc]  # each of them is a coroutine
        await asyncio.sleep(120)
        assert _phases(changes, "job") == ["Pending", "Running", over]
        assert _exit_code(node, "job") == exit_code
        assert len([run for run in node.runs_of(uid) if run.started is not None]) == 1

    run_scenario(scenario)


def _exit_code(node: SimNode, name: str) -> int | None:
    ended = node.status(name).state.terminated
    return None if ended is None else ended.exit_code


NEVER_RAN: dict[str, Callable[[SimNode, PodUID], None]] = {
    "its image cannot be pulled": lambda node, uid: node.runtime.missing_images.add("app:v1"),
    "its sandbox cannot be created": lambda node, uid: _order(node.runtime.faults.fail("run_sandbox", uid, times=None)),
    "its container cannot be created": lambda node, uid: _order(
        node.runtime.faults.fail("create_container", uid, times=None)
    ),
    "its container does not start": lambda node, uid: _order(
        node.runtime.faults.fail("start_container", uid, times=None)
    ),
}


def _order(_: object) -> None:
    """Discard the result."""


@pytest.mark.parametrize("deadline", [None, 20], ids=["deleted", "past its deadline"])
@pytest.mark.parametrize("fault", NEVER_RAN.values(), ids=NEVER_RAN.keys())
def test_no_success_is_reported_for_a_container_that_never_ran(
    fault: Callable[[SimNode, PodUID], None], deadline: int | None
) -> None:
    """Pain 9: k/k PR 88440, 116410."""

    async def scenario(node: SimNode) -> None:
        changes = node.changes()
        uid = node.put(pod("job", policy="OnFailure", deadline=deadline))
        fault(node, uid)
        await asyncio.sleep(30)
        if deadline is None:
            node.delete("job", grace=1)
            await node.until(lambda: node.is_gone("job"), within=60)
        else:
            await node.until(lambda: node.phase("job") == "Failed", within=60)
        shown = [change.new for change in changes if change.new is not None]
        assert [each.status.phase for each in shown if each.status.phase == "Succeeded"] == []
        codes = {
            ended.exit_code
            for each in shown
            for status in each.status.container_statuses or ()
            if (ended := status.state.terminated) is not None
        }
        assert 0 not in codes

    run_scenario(scenario)


def test_an_exit_while_no_agent_runs_is_published_with_its_exit_code() -> None:
    """Pain 9: k/k 116410."""

    async def scenario(node: SimNode) -> None:
        for name, code in (("good", 0), ("bad", 7)):
            node.put(pod(name, policy="Never", behaviours={"app": Behaviour(after_seconds=10, exit_code=code)}))
        await asyncio.sleep(5)
        await node.restart_agent(downtime_seconds=20)
        await node.until(lambda: (node.phase("good"), node.phase("bad")) == ("Succeeded", "Failed"), within=3)
        assert (_exit_code(node, "good"), _exit_code(node, "bad")) == (0, 7)

    run_scenario(scenario)


# 12: graceful node shutdown loses final status.


@pytest.mark.parametrize("api_seconds", [0.0, 2.0], ids=["a prompt API", "a slow API"])
def test_the_agent_sends_every_final_status_before_it_exits(api_seconds: float) -> None:
    """Pain 12: k/k 110755, 112443; thirty jobs end at the same time, and the agent is stopped right after."""
    names = [f"job-{index:02}" for index in range(30)]

    async def scenario(node: SimNode) -> None:
        node.put(
            *(pod(name, policy="Never", behaviours={"app": Behaviour(after_seconds=10, exit_code=3)}) for name in names)
        )
        await node.until(lambda: all(node.phase(name) == "Running" for name in names), within=9)
        node.api.delays.update(get=api_seconds, patch_status=api_seconds)
        await node.until(lambda: not list(node.world.truth.all_running()), within=15)
        await asyncio.sleep(0.5)
        await node.world.stop_gracefully(within_seconds=120, downtime_seconds=1000)
        assert [name for name in names if node.phase(name) != "Failed"] == []
        assert {_exit_code(node, name) for name in names} == {3}

    run_scenario(scenario)


GONE: dict[str, Callable[[SimNode], None]] = {
    "the agent restarts": lambda node: None,
    "the machine restarts": lambda node: node.world.reboot(),
}


@pytest.mark.parametrize("restart", GONE.values(), ids=GONE.keys())
def test_unsent_final_statuses_are_sent_at_the_next_start(restart: Callable[[SimNode], None]) -> None:
    """Pain 12: k/k 110755, 112443; the API is down when the node shuts down, and the containers are removed."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=10, exit_code=3)}))
        await node.until(lambda: node.phase("job") == "Running", within=3)
        node.api.go_down()
        await asyncio.sleep(15)
        restart(node)
        await node.world.stop_gracefully(within_seconds=5, downtime_seconds=30)
        await _garbage(node, uid)
        node.api.come_up()
        await node.until(lambda: node.phase("job") == "Failed", within=60)
        assert _exit_code(node, "job") == 3

    run_scenario(scenario)


# 20: nothing starts after a reboot while the API server is away.


def test_stored_pods_start_after_a_reboot_without_an_api_server() -> None:
    """Pain 20: k/k 489, kubeedge 6414; running pods start again, terminal and deleted ones do not."""

    async def scenario(node: SimNode) -> None:
        web = node.put(pod("web"), pod("db", container(readiness=probe())))
        job = node.put(pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=2)}))
        ending = node.put(pod("ending", grace=600, behaviours={"app": Behaviour(term_seconds=None)}))
        await node.until(lambda: node.is_ready("web", "db", "ending") and node.phase("job") == "Succeeded", within=15)
        node.delete("ending")
        await asyncio.sleep(5)
        node.api.go_down()
        node.world.reboot(downtime_seconds=30)
        await asyncio.sleep(30)
        await node.until(lambda: node.runs(node.uid("web")) and node.runs(node.uid("db")), within=10)
        await asyncio.sleep(300)
        assert web in {run.uid for run in node.world.truth.all_running()}
        assert (node.runs(job), len(node.runs_of(job))) == (False, 1)
        assert (node.runs(ending), len(node.runs_of(ending))) == (False, 1)
        node.api.come_up()
        await node.until(lambda: node.is_gone("ending") and node.is_ready("web", "db"), within=70)
        assert node.phase("job") == "Succeeded"

    run_scenario(scenario)


def test_a_list_of_the_api_replaces_stored_pods() -> None:
    """Pain 20: kubeedge 6414; meanwhile one pod was deleted by force and another one was created."""

    async def scenario(node: SimNode) -> None:
        old, kept = node.put(pod("old")), node.put(pod("kept"))
        await node.until(lambda: node.is_ready("old", "kept"), within=3)
        await asyncio.sleep(5)
        node.api.go_down()
        node.world.reboot(downtime_seconds=30)
        node.delete("old", grace=0)
        new = node.put(pod("new"))
        await asyncio.sleep(30)
        await node.until(lambda: node.runs(old) and node.runs(kept), within=10)
        node.api.come_up()
        await node.until(lambda: node.is_ready("new") and not node.runs(old), within=70)
        assert (node.runs(kept), node.runs(new)) == (True, True)
        assert len([run for run in node.runs_of(kept) if run.running]) == 1

    run_scenario(scenario)


def test_stored_pods_remove_no_running_pod() -> None:
    """Pain 20: a pod that the disk did not store keeps running while the API is down."""

    async def scenario(node: SimNode) -> None:
        noted = node.put(pod("noted"))
        await node.until(lambda: node.is_ready("noted"), within=3)
        await asyncio.sleep(5)
        node.world.journal.disk_full = True
        forgotten = node.put(pod("forgotten"))
        await node.until(lambda: node.is_ready("forgotten"), within=30)
        node.api.go_down()
        node.world.crash(downtime_seconds=2)
        node.world.journal.disk_full = False
        await asyncio.sleep(300)
        assert (node.runs(noted), node.runs(forgotten)) == (True, True)
        node.api.come_up()
        await asyncio.sleep(70)
        assert node.is_ready("noted", "forgotten")
        assert [len(node.runs_of(uid)) for uid in (noted, forgotten)] == [1, 1]

    run_scenario(scenario)


def test_status_updates_do_not_store_the_pod_again() -> None:
    """Pain 20: a crash loop of an hour stores its pod only once."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("loop", behaviours={"app": Behaviour(after_seconds=1, exit_code=1)}))
        await node.until(lambda: f"pod/{uid}" in node.world.journal.load(), within=3)
        note = node.world.journal.load()[f"pod/{uid}"]
        await asyncio.sleep(3600)
        assert (node.status("loop").restart_count or 0) > 10
        assert node.world.journal.load()[f"pod/{uid}"] == note

    run_scenario(scenario)
