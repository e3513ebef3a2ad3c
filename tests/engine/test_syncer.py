"""Pods from start to end in virtual time: the syncer with the real modules, on a fake runtime."""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from podkeeper.engine.loop import HEALTH_PERIOD_SECONDS
from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod, PodStatus
from podkeeper.model.messages import FILE_SOURCE
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.rules.evict import Eviction, evicted_status
from podkeeper.rules.worker.states import Finished, Syncing
from podkeeper.rules.worker.updates import KillOptions
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.build import container, exec_hook, probe
from tests.engine.small_node import SmallNode, in_small_node, pod


def finished(node: SmallNode, of: Pod) -> bool:
    return isinstance(node.agent.engine.workers.state(uid_of(of)), Finished)


def exit_of(node: SmallNode, of: Pod, name: str = "app") -> tuple[int, str | None] | None:
    ended = node.container_status(of, name).state.terminated
    return None if ended is None else (ended.exit_code, ended.reason)


def started(node: SmallNode, of: Pod | None = None) -> list[tuple[float, str]]:
    return [(round(at, 3), name) for at, _, name in node.calls("start_container", about=of)]


def test_a_pod_starts_becomes_ready_and_is_removed() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", container(readiness=probe()), volumes=("data",))
        node.add(web)
        await asyncio.sleep(1)
        assert node.phases_of(web) == ["Pending", "Running"]
        assert node.reports_ready(web)
        assert uid_of(web) in node.volumes.mounted_pods()
        sandbox = next(call.given for call in node.runtime.call_log if call.operation == "run_sandbox")
        assert sandbox.cgroup_parent == "/kubepods/poduid-web"
        node.delete_pod(web)
        await asyncio.sleep(1)
        assert finished(node, web)
        assert exit_of(node, web) == (0, "Completed")
        assert node.volumes.mounted_pods() == frozenset() == await node.cgroups.list_pods()
        assert len(node.agent.engine.probes) == 0

    in_small_node(scenario)


def test_a_start_takes_no_longer_than_the_runtime_calls() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", container(readiness=probe(period=60)))
        node.add(web)
        await asyncio.sleep(0.31)
        assert node.reports_ready(web)
        node.delete_pod(web)
        await asyncio.sleep(0.06)
        assert finished(node, web)

    in_small_node(scenario, delays={"run_sandbox": 0.2, "start_container": 0.1, "stop_sandbox": 0.05})


def test_a_job_succeeds_and_never_runs_again() -> None:
    async def scenario(node: SmallNode) -> None:
        job = pod("job", policy="OnFailure")
        node.add(job)
        await asyncio.sleep(300)
        assert node.phases == [(0, "job", "Pending"), (0, "job", "Running"), (5, "job", "Succeeded")]
        assert exit_of(node, job) == (0, "Completed")
        assert started(node) == [(0, "app")]
        assert finished(node, job)

    in_small_node(scenario, behaviours={"app": Behaviour(after_seconds=5)})


def test_a_crash_loop_backs_off_10_20_40_seconds_from_each_exit() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web")
        node.add(web)
        await asyncio.sleep(1.5)
        assert started(node) == [(0, "app"), (1, "app")]  # the first restart waits for nothing
        await asyncio.sleep(1)
        waiting = node.container_status(web).state.waiting
        assert waiting is not None
        assert waiting.reason == "CrashLoopBackOff"  # at once, not with the next sync
        assert node.container_status(web).last_state.terminated is not None
        await asyncio.sleep(120)
        # The loop runs a sync 1 ms after its due time, and rounds due times that are 30 s away up to half seconds.
        assert started(node) == [(0, "app"), (1, "app"), (12.001, "app"), (33.002, "app"), (74.501, "app")]
        assert node.container_status(web).restart_count == 4

    in_small_node(scenario, behaviours={"app": Behaviour(after_seconds=1, exit_code=1)})


def test_init_containers_run_one_after_the_other_and_sidecars_stay() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", init=(container("first"), container("proxy", sidecar=True), container("second")))
        node.add(web)
        await asyncio.sleep(10)
        assert started(node) == [(0, "first"), (2, "proxy"), (2, "second"), (5, "app")]
        assert node.phases_of(web) == ["Pending", "Running"]
        assert node.reports_ready(web)
        node.delete_pod(web)
        await asyncio.sleep(10)
        ends = [(call.subject, call.ended) for call in node.runtime.call_log if call.operation == "stop_container"]
        assert ends == [("app", 14), ("proxy", 15)]  # the sidecar stops last
        assert finished(node, web)

    in_small_node(
        scenario,
        behaviours={
            "first": Behaviour(after_seconds=2),
            "second": Behaviour(after_seconds=3),
            "app": Behaviour(term_seconds=4),
            "proxy": Behaviour(term_seconds=1),
        },
    )


GRACES = {
    "hook and politeness share the grace": (30, Behaviour(exec=(ExecStep(takes_seconds=5),), term_seconds=7), 12, 0),
    "a container that ignores SIGTERM is killed after the grace period": (30, Behaviour(term_seconds=None), 30, 137),
    "a hook may use it all up": (10, Behaviour(exec=(ExecStep(takes_seconds=60),), term_seconds=None), 12, 137),
}


@pytest.mark.parametrize("grace, behaviour, seconds, code", GRACES.values(), ids=GRACES.keys())
def test_a_deletion_uses_the_grace_period(grace: int, behaviour: Behaviour, seconds: float, code: int) -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", container(pre_stop=exec_hook("bye")), grace=grace)
        node.add(web)
        await asyncio.sleep(100)
        node.delete_pod(web)
        await asyncio.sleep(seconds - 0.5)
        assert not finished(node, web)
        assert node.status(web).phase == "Running"
        await asyncio.sleep(1)
        assert finished(node, web)
        assert exit_of(node, web) == (code, "Error" if code else "Completed")

    in_small_node(scenario, behaviours={"app": behaviour})


def test_a_shortened_grace_period_applies_at_once() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", grace=600)
        node.add(web)
        await asyncio.sleep(1)
        node.delete_pod(web)
        await asyncio.sleep(9)
        node.delete_pod(web, grace=2)
        await asyncio.sleep(2.1)
        assert finished(node, web)

    in_small_node(scenario, behaviours={"app": Behaviour(term_seconds=None)})


def test_an_evicted_pod_fails_with_the_reason_and_keeps_its_exit_codes() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", container("app"), container("db"))
        node.add(web)
        await asyncio.sleep(1)

        def evict(status: PodStatus) -> PodStatus:
            return evicted_status(web, status, Eviction("Evicted", "The node was low on memory."), node.clock.now())

        node.kill(web, KillOptions(evict=True, grace_override_seconds=3, status_function=evict))
        await asyncio.sleep(1)
        assert node.status(web).phase == "Failed"  # published before any container stops
        assert node.container_status(web).state.running is not None
        await asyncio.sleep(3)
        assert (node.status(web).reason, node.status(web).message) == ("Evicted", "The node was low on memory.")
        assert (exit_of(node, web), exit_of(node, web, "db")) == ((137, "Error"), (3, "Error"))
        assert finished(node, web)

    in_small_node(
        scenario, behaviours={"app": Behaviour(term_seconds=None), "db": Behaviour(term_seconds=1, term_exit_code=3)}
    )


def test_a_pod_past_its_deadline_fails() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", deadline=60)
        node.add(web)
        await asyncio.sleep(59)
        assert node.status(web).phase == "Running"
        await asyncio.sleep(3)
        assert (node.status(web).phase, node.status(web).reason) == ("Failed", "DeadlineExceeded")
        assert node.reasons().count("DeadlineExceeded") == 1
        assert finished(node, web)

    in_small_node(scenario)


def test_a_hung_volume_delays_only_its_own_pod() -> None:
    async def scenario(node: SmallNode) -> None:
        pods = [pod(f"pod-{number}", volumes=("data",)) for number in range(100)]
        node.volumes.faults.hang("mount", uid_of(pods[7]))
        node.add(*pods)
        await asyncio.sleep(0.001)
        assert Counter(node.status(each).phase for each in pods) == {"Running": 99, "Pending": 1}
        for each in pods:
            node.delete_pod(each)
        await asyncio.sleep(1)
        assert [each.metadata.name for each in pods if not finished(node, each)] == ["pod-7"]
        # Not even its own containers wait for it, only what comes after a call that is under way.
        assert node.agent.engine.workers.is_pod_known_terminated(uid_of(pods[7]))
        node.volumes.faults.clear()
        await asyncio.sleep(1)
        assert finished(node, pods[7])
        assert node.volumes.mounted_pods() == frozenset()

    in_small_node(scenario)


def test_a_volume_that_cannot_be_mounted_is_named_and_tried_again() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", volumes=("data",))
        node.volumes.faults.fail("mount", uid_of(web))
        node.add(web)
        await asyncio.sleep(5)
        assert [message for reason, message in node.events() if reason == "FailedMount"] == [
            "cannot mount web: injected fault"
        ]
        assert node.status(web).phase == "Pending"
        assert started(node) == []
        await asyncio.sleep(10)
        assert node.status(web).phase == "Running"

    in_small_node(scenario)


def test_without_a_network_only_host_network_pods_start() -> None:
    async def scenario(node: SmallNode) -> None:
        web, proxy = pod("web"), pod("proxy", host_network=True)
        node.runtime.condition = RuntimeHealth(network_ready=False, message="cni plugin not initialized")
        await asyncio.sleep(HEALTH_PERIOD_SECONDS)
        node.add(web, proxy)
        await asyncio.sleep(10)
        assert (node.status(web).phase, node.status(proxy).phase) == ("Pending", "Running")
        assert node.status(proxy).pod_ip == "192.0.2.1"
        message = "network is not ready: cni plugin not initialized"
        assert ("NetworkNotReady", message) in node.events()
        node.runtime.condition = RuntimeHealth()
        await asyncio.sleep(HEALTH_PERIOD_SECONDS + 1.1)
        assert node.status(web).phase == "Running"

    in_small_node(scenario)


def test_a_static_pod_requests_a_mirror_pod_and_runs_without_one() -> None:
    async def scenario(node: SmallNode) -> None:
        static, other = pod("static", source=FILE_SOURCE), pod("other")
        node.mirrors.error = ApiUnavailable("cannot reach the API")
        node.add(static, other)
        await asyncio.sleep(5)
        assert node.status(static).phase == "Running"
        assert set(node.mirrors.ensured) == {("static", False)}

    in_small_node(scenario)


def test_a_container_that_fails_its_liveness_probe_is_replaced() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", container(liveness=probe(period=10, failures=2)))
        node.add(web)
        await asyncio.sleep(15)
        first = node.container_status(web).container_id
        await asyncio.sleep(30)
        assert node.container_status(web).restart_count == 1
        assert node.container_status(web).container_id != first
        assert "Unhealthy" in node.reasons()
        assert "Killing" in node.reasons()

    ill = Behaviour(exec=(ExecStep(from_seconds=12, exit_code=1, output="no"),))
    in_small_node(scenario, behaviours={"app": ill})


@pytest.mark.parametrize(
    "others", [pytest.param(("app",), id="another one runs"), pytest.param((), id="no other: no exit follows")]
)
def test_one_exit_makes_all_containers_start_over_without_waiting(others: tuple[str, ...]) -> None:
    async def scenario(node: SmallNode) -> None:
        rule = ContainerRestartRule(
            action="RestartAllContainers", exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(42,))
        )
        watcher = replace(container("watcher"), restart_policy="Never", restart_policy_rules=(rule,))
        node.add(pod("web", *map(container, others), watcher))
        await asyncio.sleep(6)
        names = (*others, "watcher")
        assert started(node) == [*((0, name) for name in names), *((5, name) for name in names)]

    in_small_node(scenario, behaviours={"watcher": Behaviour(after_seconds=5, exit_code=42, crashes=1)})


def test_nothing_starts_in_a_terminating_pod() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", *(container(f"c{number}") for number in range(5)))
        node.add(web)
        await asyncio.sleep(2.5)  # in the middle of the third
        node.delete_pod(web)
        await asyncio.sleep(60)
        assert [name for _, name in started(node)] == ["c0", "c1", "c2"]
        assert finished(node, web)

    in_small_node(scenario, delays={"start_container": 1})


def test_a_restarted_agent_does_not_change_running_pods() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", container(readiness=probe(period=60)))
        node.add(web)
        await asyncio.sleep(100)
        known = replace(web, status=node.status(web))
        calls = len(node.calls("start_container", "run_sandbox", "stop_container"))
        await node.restart_agent()
        flags: list[bool] = []
        node.agent.engine.statuses.subscribe(lambda *_: flags.append(node.reports_ready(known)))
        node.add(known)
        await asyncio.sleep(200)
        assert node.reports_ready(known)
        assert all(flags)
        assert len(node.calls("start_container", "run_sandbox", "stop_container")) == calls

    in_small_node(scenario)


def test_a_failed_start_is_published_at_once() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web")
        node.runtime.faults.fail("create_container", uid_of(web), times=None)
        node.add(web)
        await asyncio.sleep(0.5)
        waiting = node.container_status(web).state.waiting
        assert waiting is not None
        assert (waiting.reason, node.status(web).pod_ip) == ("CreateContainerError", "10.0.0.1")

    in_small_node(scenario)


def test_a_runtime_only_pod_is_killed_with_a_short_grace_period() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", grace=600)
        node.add(web)
        await asyncio.sleep(1)
        record = node.agent.engine.cache.get(uid_of(web))
        began = node.clock.monotonic()
        await node.agent.engine.syncer.sync_terminating_runtime_pod(record)
        assert node.clock.monotonic() - began == 2  # as little as a container may have
        assert all(not sandbox.ready for sandbox in (await node.runtime.pod_record(uid_of(web))).sandboxes)

    in_small_node(scenario, behaviours={"app": Behaviour(term_seconds=None)})


def test_an_unchanged_pod_is_not_synced_again() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web", Container(name="app", image="app:v1"))
        node.add(web)
        await asyncio.sleep(100)
        status, calls = node.status(web), len(node.volumes.call_log)
        for _ in range(5):
            node.sync(web)
            await asyncio.sleep(1)
        assert node.status(web) is status
        assert len(node.volumes.call_log) == calls
        assert isinstance(node.agent.engine.workers.state(uid_of(web)), Syncing)

    in_small_node(scenario)


def test_a_start_that_took_effect_without_an_answer_is_no_failure() -> None:
    async def scenario(node: SmallNode) -> None:
        web = pod("web")
        node.runtime.faults.lose_answer("start_container", uid_of(web))
        node.add(web)
        await asyncio.sleep(30)
        assert started(node, web) == [(0.0, "app")]
        assert node.container_status(web).state.running is not None
        assert node.agent.engine.executor.failures_of(uid_of(web)) == {}

    in_small_node(scenario)
