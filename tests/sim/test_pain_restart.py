"""Pains of restarts: Ready bits that flap, phases that revert, exit codes that get lost, nodes that stay empty."""

import asyncio
from collections.abc import Callable

import pytest

from podkeeper.model.k8s.core import GRPCAction, HTTPGetAction, Probe, TCPSocketAction
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import Answered, Endpoint, HttpAnswer, HttpRequest
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, container, each_ready_bit, exec_probe, pod, tell

FAILS = Behaviour(exec=(ExecStep(exit_code=1),))


def probe(**how: object) -> Probe:
    """A probe of any kind, every ten seconds; not before the container is half a minute old."""
    return Probe(
        period_seconds=10,
        initial_delay_seconds=30,
        timeout_seconds=1,
        failure_threshold=3,
        success_threshold=1,
        **how,  # type: ignore[arg-type]  # which kind is the caller's business
    )


def _answers(world: World) -> None:
    """Port 80 is fine; nothing else is."""

    def http(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200 if ":80/" in request.url else 500)

    def tcp(endpoint: Endpoint) -> str | None:
        return None if endpoint.port == 80 else "connection refused"

    def grpc(endpoint: Endpoint, service: str) -> Answered:
        return Answered(1 if endpoint.port == 80 else 2)

    world.prober.http_script, world.prober.tcp_script, world.prober.grpc_script = http, tcp, grpc


PODS = {
    "plain": pod("plain"),
    "exec": pod("exec", container(ready=exec_probe(delay=30))),
    "exec-unready": pod("exec-unready", container(ready=exec_probe(delay=30)), app=FAILS),
    "http": pod("http", container(ready=probe(http_get=HTTPGetAction(port=80)))),
    "http-unready": pod("http-unready", container(ready=probe(http_get=HTTPGetAction(port=81)))),
    "tcp": pod("tcp", container(ready=probe(tcp_socket=TCPSocketAction(port=80)))),
    "tcp-unready": pod("tcp-unready", container(ready=probe(tcp_socket=TCPSocketAction(port=81)))),
    "grpc": pod("grpc", container(ready=probe(grpc=GRPCAction(port=80)))),
    "grpc-unready": pod("grpc-unready", container(ready=probe(grpc=GRPCAction(port=81)))),
    "startup": pod("startup", container(startup=exec_probe(period=5), ready=exec_probe(delay=30), live=exec_probe())),
    "not-started": pod("not-started", container(startup=exec_probe(failures=9999)), app=FAILS),
    "half": pod("half", container(), container("side", ready=exec_probe()), side=FAILS),
    "sidecar": pod("sidecar", container(), init=(container("mesh", ready=exec_probe(delay=30), restart="Always"),)),
}


@pytest.mark.parametrize("away", [0.2, 5.0, 120.0])
def test_a_restart_of_the_agent_changes_no_ready_bit(away: float) -> None:
    """Pain 8: k/k 100277, 135795; probes of all kinds, with initial delays; ready pods and unready ones."""

    async def story(it: Story) -> None:
        it.put(*PODS.values())
        await asyncio.sleep(90)
        ready = {name for name in PODS if it.is_ready(name)}
        assert ready == {"plain", "exec", "http", "tcp", "grpc", "startup", "sidecar"}
        changes = it.changes()
        for _ in range(3):
            await it.restart_agent(away)
            await asyncio.sleep(70)
        assert each_ready_bit(changes) == []
        assert all(len(it.lives(it.uid(name))) == 1 for name in PODS)

    tell(story, prepare=_answers)


def test_a_pod_that_became_unready_just_before_a_restart_stays_so() -> None:
    """Pain 8: k/k 135795; the API is away when the probe fails, and comes back with the new agent."""

    async def story(it: Story) -> None:
        life = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=50, exit_code=1)))
        it.put(pod("web", container(ready=exec_probe(failures=1)), app=life))
        await it.until(lambda: it.is_ready("web"), within=15)
        await asyncio.sleep(45 - it.world.now())
        it.api.go_down()
        await asyncio.sleep(20)
        changes = it.changes()
        it.world.crash(away_seconds=2)
        it.api.come_up()
        await it.until(lambda: not it.is_ready("web"), within=5)
        await asyncio.sleep(60)
        assert len(each_ready_bit(changes)) == 1

    tell(story)


# 9: terminal phase reverts; success reported for a container that never ran; exit codes lost.


def _phases(changes: list[PodChanged], name: str) -> list[str]:
    """The phases a pod went through, repetitions left out."""
    phases: list[str] = []
    for change in changes:
        pod = change.new
        if pod is not None and pod.metadata.name == name and [pod.status.phase] != phases[-1:]:
            phases.append(pod.status.phase or "")
    return phases


async def _garbage(it: Story, uid: PodUID) -> None:
    for life in it.lives(uid):
        if life.removed is None:
            await it.runtime.remove_container(life.id)


async def _reboot(it: Story, uid: PodUID) -> None:
    it.world.reboot(away_seconds=5)
    await asyncio.sleep(6)


async def _crash(it: Story, uid: PodUID) -> None:
    await it.restart_agent()


async def _crash_and_garbage(it: Story, uid: PodUID) -> None:
    it.world.crash(away_seconds=5)
    await _garbage(it, uid)
    await asyncio.sleep(6)


AFTERWARDS = {
    "its containers are removed": _garbage,
    "the agent restarts": _crash,
    "the agent restarts and finds nothing": _crash_and_garbage,
    "the machine restarts": _reboot,
}


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS.keys())
@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_pod_that_is_over_stays_over_with_its_exit_code(
    exit_code: int, afterwards: Callable[[Story, PodUID], object]
) -> None:
    """Pain 9: k/k 58711, PR 88440, 116410."""

    async def story(it: Story) -> None:
        changes = it.changes()
        uid = it.put(pod("job", policy="Never", app=Behaviour(after_seconds=5, exit_code=exit_code)))
        over = "Failed" if exit_code else "Succeeded"
        await it.until(lambda: it.phase("job") == over, within=10)
        await afterwards(it, uid)  # type: ignore[misc]  # each of them is a coroutine
        await asyncio.sleep(120)
        assert _phases(changes, "job") == ["Pending", "Running", over]
        assert _exit_code(it, "job") == exit_code
        assert len([life for life in it.lives(uid) if life.started is not None]) == 1

    tell(story)


def _exit_code(it: Story, name: str) -> int | None:
    ended = it.status(name).state.terminated
    return None if ended is None else ended.exit_code


NEVER_RAN: dict[str, Callable[[Story, PodUID], None]] = {
    "its image cannot be pulled": lambda it, uid: it.runtime.missing_images.add("app:v1"),
    "its sandbox never comes": lambda it, uid: _order(it.runtime.faults.fail("run_sandbox", uid, times=None)),
    "its container cannot be made": lambda it, uid: _order(it.runtime.faults.fail("create_container", uid, times=None)),
    "its container does not start": lambda it, uid: _order(it.runtime.faults.fail("start_container", uid, times=None)),
}


def _order(_: object) -> None:
    """What was ordered is not needed any more."""


@pytest.mark.parametrize("deadline", [None, 20], ids=["deleted", "past its deadline"])
@pytest.mark.parametrize("trouble", NEVER_RAN.values(), ids=NEVER_RAN.keys())
def test_no_success_is_reported_for_a_container_that_never_ran(
    trouble: Callable[[Story, PodUID], None], deadline: int | None
) -> None:
    """Pain 9: k/k PR 88440, 116410."""

    async def story(it: Story) -> None:
        changes = it.changes()
        uid = it.put(pod("job", policy="OnFailure", deadline=deadline))
        trouble(it, uid)
        await asyncio.sleep(30)
        if deadline is None:
            it.delete("job", grace=1)
            await it.until(lambda: it.is_gone("job"), within=60)
        else:
            await it.until(lambda: it.phase("job") == "Failed", within=60)
        shown = [change.new for change in changes if change.new is not None]
        assert [each.status.phase for each in shown if each.status.phase == "Succeeded"] == []
        codes = {
            ended.exit_code
            for each in shown
            for status in each.status.container_statuses or ()
            if (ended := status.state.terminated) is not None
        }
        assert 0 not in codes

    tell(story)


def test_what_ended_while_no_agent_lived_is_told_with_its_exit_code() -> None:
    """Pain 9: k/k 116410."""

    async def story(it: Story) -> None:
        for name, code in (("good", 0), ("bad", 7)):
            it.put(pod(name, policy="Never", app=Behaviour(after_seconds=10, exit_code=code)))
        await asyncio.sleep(5)
        await it.restart_agent(away_seconds=20)
        await it.until(lambda: (it.phase("good"), it.phase("bad")) == ("Succeeded", "Failed"), within=3)
        assert (_exit_code(it, "good"), _exit_code(it, "bad")) == (0, 7)

    tell(story)


# 12: graceful node shutdown loses final status.


@pytest.mark.parametrize("api_seconds", [0.0, 2.0], ids=["a prompt API", "a slow API"])
def test_before_it_ends_the_agent_tells_every_final_status(api_seconds: float) -> None:
    """Pain 12: k/k 110755, 112443; thirty jobs end at one moment, and the agent is stopped right after."""
    names = [f"job-{index:02}" for index in range(30)]

    async def story(it: Story) -> None:
        it.put(*(pod(name, policy="Never", app=Behaviour(after_seconds=10, exit_code=3)) for name in names))
        await it.until(lambda: all(it.phase(name) == "Running" for name in names), within=9)
        it.api.delays.update(get=api_seconds, patch_status=api_seconds)
        await it.until(lambda: not list(it.world.truth.all_running()), within=15)
        await asyncio.sleep(0.5)
        await it.world.stop_gracefully(within_seconds=120, away_seconds=1000)
        assert [name for name in names if it.phase(name) != "Failed"] == []
        assert {_exit_code(it, name) for name in names} == {3}

    tell(story)


GONE: dict[str, Callable[[Story], None]] = {
    "the agent restarts": lambda it: None,
    "the machine restarts": lambda it: it.world.reboot(),
}


@pytest.mark.parametrize("restart", GONE.values(), ids=GONE.keys())
def test_what_could_not_be_told_before_the_end_is_told_at_the_next_start(restart: Callable[[Story], None]) -> None:
    """Pain 12: k/k 110755, 112443; the API is away when the node shuts down, and the containers are removed."""

    async def story(it: Story) -> None:
        uid = it.put(pod("job", policy="Never", app=Behaviour(after_seconds=10, exit_code=3)))
        await it.until(lambda: it.phase("job") == "Running", within=3)
        it.api.go_down()
        await asyncio.sleep(15)
        restart(it)
        await it.world.stop_gracefully(within_seconds=5, away_seconds=30)
        await _garbage(it, uid)
        it.api.come_up()
        await it.until(lambda: it.phase("job") == "Failed", within=60)
        assert _exit_code(it, "job") == 3

    tell(story)


# 20: nothing starts after a reboot while the API server is away.


def test_after_a_reboot_without_an_api_server_the_last_known_pods_start() -> None:
    """Pain 20: k/k 489, kubeedge 6414; running pods come back, and those that were over or deleted do not."""

    async def story(it: Story) -> None:
        web = it.put(pod("web"), pod("db", container(ready=exec_probe())))
        job = it.put(pod("job", policy="Never", app=Behaviour(after_seconds=2)))
        ending = it.put(pod("ending", grace=600, app=Behaviour(term_seconds=None)))
        await it.until(lambda: it.is_ready("web", "db", "ending") and it.phase("job") == "Succeeded", within=15)
        it.delete("ending")
        await asyncio.sleep(5)
        it.api.go_down()
        it.world.reboot(away_seconds=30)
        await asyncio.sleep(30)
        await it.until(lambda: it.runs(it.uid("web")) and it.runs(it.uid("db")), within=10)
        await asyncio.sleep(300)
        assert web in {life.uid for life in it.world.truth.all_running()}
        assert (it.runs(job), len(it.lives(job))) == (False, 1)
        assert (it.runs(ending), len(it.lives(ending))) == (False, 1)
        it.api.come_up()
        await it.until(lambda: it.is_gone("ending") and it.is_ready("web", "db"), within=70)
        assert it.phase("job") == "Succeeded"

    tell(story)


def test_what_is_remembered_gives_way_to_what_the_api_says() -> None:
    """Pain 20: kubeedge 6414; meanwhile one pod was deleted by force and another one came."""

    async def story(it: Story) -> None:
        old, kept = it.put(pod("old")), it.put(pod("kept"))
        await it.until(lambda: it.is_ready("old", "kept"), within=3)
        await asyncio.sleep(5)
        it.api.go_down()
        it.world.reboot(away_seconds=30)
        it.delete("old", grace=0)
        new = it.put(pod("new"))
        await asyncio.sleep(30)
        await it.until(lambda: it.runs(old) and it.runs(kept), within=10)
        it.api.come_up()
        await it.until(lambda: it.is_ready("new") and not it.runs(old), within=70)
        assert (it.runs(kept), it.runs(new)) == (True, True)
        assert len([life for life in it.lives(kept) if life.running]) == 1

    tell(story)


def test_memory_removes_nobody() -> None:
    """Pain 20: a pod whose note the disk refused runs on while the API is away."""

    async def story(it: Story) -> None:
        noted = it.put(pod("noted"))
        await it.until(lambda: it.is_ready("noted"), within=3)
        await asyncio.sleep(5)
        it.world.journal.disk_full = True
        forgotten = it.put(pod("forgotten"))
        await it.until(lambda: it.is_ready("forgotten"), within=30)
        it.api.go_down()
        it.world.crash(away_seconds=2)
        it.world.journal.disk_full = False
        await asyncio.sleep(300)
        assert (it.runs(noted), it.runs(forgotten)) == (True, True)
        it.api.come_up()
        await asyncio.sleep(70)
        assert it.is_ready("noted", "forgotten")
        assert [len(it.lives(uid)) for uid in (noted, forgotten)] == [1, 1]

    tell(story)


def test_status_updates_write_no_notes_of_pods() -> None:
    """Pain 20: the price: a crash loop of an hour costs its pod one note."""

    async def story(it: Story) -> None:
        uid = it.put(pod("loop", app=Behaviour(after_seconds=1, exit_code=1)))
        await it.until(lambda: f"pod/{uid}" in it.world.journal.load(), within=3)
        note = it.world.journal.load()[f"pod/{uid}"]
        await asyncio.sleep(3600)
        assert (it.status("loop").restart_count or 0) > 10
        assert it.world.journal.load()[f"pod/{uid}"] == note

    tell(story)
