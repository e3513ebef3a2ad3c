"""The whole agent in virtual time: pods start and end, and the failure of one pod affects no other."""

import asyncio
import math
from functools import partial

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import BadInput, ImagePullFailed, RuntimeUnavailable
from podkeeper.model.k8s.core import Container, Pod, PodSpec, ResourceRequirements
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import Op, PodUID, PodUpdate, ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.runtime import PodRecord
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.rules.admission.preempt import SYSTEM_CRITICAL_PRIORITY
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing import build
from podkeeper.testing.build import container, probe
from podkeeper.testing.node import NODE, NodeHarness, on_node

pod = partial(build.pod, uid="", node=NODE, volumes=("data",))
NAMES = [f"pod-{index:02}" for index in range(50)]


def probed(name: str = "app") -> Container:
    """A container with a readiness probe."""
    return container(name, readiness=probe("check", name))


def test_a_pod_becomes_ready_and_is_removed_after_its_deletion() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(pod("web", probed()))
        await harness.until(lambda: harness.is_ready("web"), within=5)
        await harness.delete("web")
        await harness.until(lambda: harness.phase("web") == "gone", within=5)
        await asyncio.sleep(5)
        assert harness.runtime.live_containers() == []
        assert await harness.cgroups.list_pods() == frozenset()
        assert harness.volumes.mounted_pods() == frozenset()

    on_node(scenario)


def test_a_job_succeeds_and_a_crash_loop_backs_off() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.runtime.behave("job", "app", Behaviour(after_seconds=3, exit_code=0))
        harness.runtime.behave("crash", "app", Behaviour(after_seconds=1, exit_code=2))
        await harness.create(pod("job", container(), policy="Never"), pod("crash", container()))
        await harness.until(lambda: harness.phase("job") == "Succeeded", within=5)
        await asyncio.sleep(60)
        found = harness.in_api("crash")
        assert found is not None
        (status,) = found.status.container_statuses or ()
        # It starts at 0, 1 (no wait the first time), then 10 and 20 s after each exit.
        assert status.restart_count == 3
        assert status.state.waiting is not None
        assert status.state.waiting.reason == "CrashLoopBackOff"

    on_node(scenario)


def test_a_late_success_of_a_readiness_probe_makes_no_exited_container_ready() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.runtime.behave("job", "app", Behaviour(after_seconds=3, exit_code=0))
        await harness.create(pod("job", probed(), policy="Never"))
        await harness.until(lambda: harness.phase("job") == "Succeeded", within=10)
        found = harness.agent.engine.statuses.get_pod_status(harness.uid("job"))
        assert found is not None
        (status,) = found.container_statuses or ()
        assert not harness.agent.engine.statuses.set_container_readiness(
            harness.uid("job"), status.container_id or "", True
        )

    on_node(scenario)


HUNG = {
    "a sandbox that never comes up": lambda harness, uid, name: harness.runtime.faults.hang("run_sandbox", uid),
    "a container that never starts": lambda harness, uid, name: harness.runtime.faults.hang("start_container", uid),
    "an image that never comes": lambda harness, uid, name: harness.runtime.faults.hang("pull_image", f"{name}:v1"),
    "a hung inspection": lambda harness, uid, name: harness.runtime.faults.hang("pod_record", uid, times=None),
    "a probe that never ends": lambda harness, uid, name: harness.runtime.faults.hang("exec_sync", uid, times=None),
    "a volume that never mounts": lambda harness, uid, name: harness.volumes.faults.hang("mount", uid, times=None),
    "a cgroup that is never made": lambda harness, uid, name: harness.cgroups.faults.hang("ensure", uid, times=None),
    "a status the API never takes": lambda harness, uid, name: harness.api.faults.hang(
        "patch_status", name, times=None
    ),
    "a pod the API never shows": lambda harness, uid, name: harness.api.faults.hang("get", name, times=None),
}


@pytest.mark.parametrize("plant", HUNG.values(), ids=HUNG.keys())
def test_one_pods_hung_call_delays_no_other_pod_and_no_housekeeping(plant: object) -> None:
    async def scenario(harness: NodeHarness) -> None:
        assert callable(plant)
        created = await harness.create(*(pod(name, probed(name)) for name in NAMES))
        culprit = created[0]
        plant(harness, PodUID(culprit.metadata.uid or ""), NAMES[0])
        others = NAMES[1:]
        seconds = await harness.until(lambda: all(map(harness.is_ready, others)), within=20)
        assert seconds <= 1, f"the others waited {seconds} s"
        # Housekeeping continues: orphaned pods are killed, deleted pods are removed.
        for name in others[:25]:
            await harness.delete(name)
        await harness.until(lambda: all(harness.phase(name) == "gone" for name in others[:25]), within=3)
        await harness.create(pod("late", probed()))
        await harness.until(lambda: harness.is_ready("late"), within=3)

    on_node(scenario)


def test_a_deletion_waits_for_no_other_pod() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.runtime.behave(NAMES[0], "app", Behaviour(term_seconds=None))
        await harness.create(*(pod(name, probed(), grace=600) for name in NAMES))
        await harness.until(lambda: all(map(harness.is_ready, NAMES)), within=10)
        for name in NAMES:
            await harness.delete(name)
        await harness.until(lambda: all(harness.phase(name) == "gone" for name in NAMES[1:]), within=5)
        assert harness.phase(NAMES[0]) == "Running"
        await harness.delete(NAMES[0], grace=2)
        await harness.until(lambda: harness.phase(NAMES[0]) == "gone", within=5)

    on_node(scenario)


def test_a_restarted_agent_restarts_nothing_and_keeps_pods_ready() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(*(pod(name, probed()) for name in NAMES[:10]))
        await harness.until(lambda: all(map(harness.is_ready, NAMES[:10])), within=5)
        before = {(uid, record.id) for uid, record in harness.runtime.live_containers()}
        await harness.restart_agent()
        for _ in range(100):
            await asyncio.sleep(1)
            assert all(map(harness.is_ready, NAMES[:10]))
        assert {(uid, record.id) for uid, record in harness.runtime.live_containers()} == before

    on_node(scenario)


def test_an_exit_while_no_agent_ran_is_reported() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(pod("job", container(), policy="Never"))
        await harness.until(lambda: harness.phase("job") == "Running", within=5)
        await harness.stop_agent()
        harness.runtime.end_container(harness.uid("job"), "app", 7)
        await asyncio.sleep(30)
        await harness.restart_agent()
        await harness.until(lambda: harness.phase("job") == "Failed", within=5)
        found = harness.in_api("job")
        assert found is not None
        (status,) = found.status.container_statuses or ()
        assert status.state.terminated is not None
        assert (status.state.terminated.exit_code, status.restart_count) == (7, 0)

    on_node(scenario)


def test_a_new_agent_stops_a_running_pod_that_is_terminal_in_the_api() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(pod("job", container(), policy="Never"))
        await harness.until(lambda: harness.phase("job") == "Running", within=5)
        await harness.stop_agent()
        found = harness.in_api("job")
        assert found is not None
        harness.api.put(replace(found, status=replace(found.status, phase="Failed")))
        harness.runtime.delays["list_pods"] = harness.runtime.delays["pod_record"] = 0.5
        await harness.restart_agent()
        await harness.until(lambda: not harness.runtime.live_containers(), within=60)

    on_node(scenario)


def test_a_static_pod_runs_without_an_api_and_its_successor_starts_at_once() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.api.go_down()
        (first,) = harness.files.write("/manifests/web.yaml", pod("web", container()))
        await asyncio.sleep(5)
        live = {uid for uid, _ in harness.runtime.live_containers()}
        # Nothing of another source is known yet, and still the static pod runs.
        assert live == {first.metadata.uid}
        (second,) = harness.files.write("/manifests/web.yaml", pod("web", container("other")))
        harness.api.come_up()
        await harness.until(
            lambda: {uid for uid, _ in harness.runtime.live_containers()} == {second.metadata.uid}, within=60, step=0.01
        )
        stopped = max(call.ended or math.inf for call in harness.runtime.call_log if call.operation == "stop_container")
        started = [call.begun for call in harness.runtime.call_log if call.operation == "run_sandbox"][-1]
        assert started - stopped < 1

    on_node(scenario)


def test_bad_input_is_refused_and_other_pods_continue() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(pod("web", probed()))
        await harness.until(lambda: harness.is_ready("web"), within=5)
        agent, unknown = harness.agent, PodUID("unknown")
        nameless = Pod(metadata=ObjectMeta(name="x"), spec=PodSpec())
        with pytest.raises(BadInput, match="uid"):
            agent.engine.storage.merge(PodUpdate(Op.ADD, (nameless,), "api"))
        with pytest.raises(BadInput, match="unknown operation"):
            agent.engine.storage.merge(PodUpdate("REPLACE", (), "api"))  # type: ignore[arg-type]  # an invalid operation is the case under test
        agent.engine.inbox.put(PodUpdate("REPLACE", (nameless,), "api"))  # type: ignore[arg-type]  # an invalid operation is the case under test
        agent.engine.inbox.put(ProbeUpdate(ProbeKind.LIVENESS, unknown, "fake://dead", ProbeResult.FAILURE))
        agent.engine.inbox.put(ProbeUpdate(ProbeKind.READINESS, harness.uid("web"), "fake://dead", ProbeResult.FAILURE))
        assert not agent.engine.statuses.set_container_readiness(unknown, "fake://dead", False)
        await asyncio.sleep(5)
        assert harness.is_ready("web")
        await harness.create(pod("late", probed()))
        await harness.until(lambda: harness.is_ready("late"), within=5)

    on_node(scenario)


def test_a_deadline_ends_a_pod() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(pod("short", probed(), deadline=30))
        await harness.until(lambda: harness.phase("short") == "Failed", within=40)
        found = harness.in_api("short")
        assert found is not None
        assert found.status.reason == "DeadlineExceeded"

    on_node(scenario)


def test_every_pod_has_an_explanation() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.runtime.behave("crash", "app", Behaviour(after_seconds=1, exit_code=2))
        await harness.create(pod("crash", container()))
        await asyncio.sleep(20)
        explanation = harness.agent.explain(harness.uid("crash"))
        assert str(explanation.state) == "syncing"
        assert explanation.next_retry is not None
        assert "back-off" in (explanation.waiting_for or "")
        assert any(getattr(entry.event, "reason", "") == "BackOff" for entry in explanation.timeline)
        assert harness.agent.health() == ()
        assert b"kubelet_pod_worker_duration_seconds" in harness.agent.engine.metrics.exposition()

    on_node(scenario)


def test_rounds_are_skipped_on_a_quiet_node_but_orphans_are_found() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(*(pod(name, probed()) for name in NAMES[:5]))
        await harness.until(lambda: all(map(harness.is_ready, NAMES[:5])), within=5)
        await asyncio.sleep(30)
        begun = harness.clock.monotonic()
        await asyncio.sleep(60)
        listings = [each for each in harness.runtime.call_log if each.operation == "list_pods" and each.begun > begun]
        assert len(listings) <= 4, "two rounds of housekeeping and a relist would do"
        unknown = replace(
            pod("orphan", probed()), metadata=ObjectMeta(name="orphan", namespace="default", uid="orphan")
        )
        await harness.runtime.run_sandbox(SandboxConfig(pod=unknown, attempt=0))
        await harness.until(
            lambda: any(
                each.operation == "stop_sandbox" and each.about == "orphan" for each in harness.runtime.call_log
            ),
            within=5,
        )

    on_node(scenario)


def test_before_a_graceful_end_pending_statuses_and_events_are_sent() -> None:
    async def scenario(harness: NodeHarness) -> None:
        await harness.create(pod("job", container(), policy="Never"))
        await harness.until(lambda: harness.phase("job") == "Running", within=5)
        harness.api.go_down()
        harness.runtime.end_container(harness.uid("job"), "app", 0)
        await asyncio.sleep(300)
        harness.api.come_up()
        await harness.agent.flush(within_seconds=5)
        assert harness.phase("job") == "Succeeded"

    on_node(scenario)


def test_the_runtime_has_nothing_of_a_removed_pod() -> None:
    async def scenario(harness: NodeHarness) -> list[str]:
        await harness.create(pod("web", probed()), pod("stays", probed()))
        await harness.until(lambda: harness.is_ready("web"), within=5)
        await harness.delete("web")
        await harness.until(lambda: harness.in_api("web") is None, within=5)
        await asyncio.sleep(5)
        return [record.name for record in await harness.runtime.list_pods()]

    assert on_node(scenario) == ["stays"]


# The journal: its keys are the format on disk, so another agent of this version must find them.


def test_backoff_and_status_have_a_journal_entry_until_their_pod_is_removed() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.runtime.behave("crash", "app", Behaviour(after_seconds=1, exit_code=2))
        harness.runtime.faults.fail(Operation.PULL_IMAGE, "missing:v1", times=None, error=ImagePullFailed)
        await harness.create(pod("crash", container()), pod("missing", container(image="missing:v1")))
        await asyncio.sleep(20)
        crash, missing = harness.uid("crash"), harness.uid("missing")
        keys = {f"status/{crash}", f"status/{missing}", f"restart-backoff/{crash}", f"pull-backoff/{missing}"}
        assert keys <= harness.journal.load().keys()
        await harness.delete("crash")
        await harness.delete("missing")
        await harness.until(lambda: harness.phase("crash") == harness.phase("missing") == "gone", within=40)
        await asyncio.sleep(60)
        assert not keys & harness.journal.load().keys()

    on_node(scenario)


def test_the_status_of_a_pod_is_restored_before_the_loop_handles_the_pod() -> None:
    async def scenario(harness: NodeHarness) -> None:
        (created,) = await harness.create(pod("web", probed()))
        await harness.until(lambda: harness.is_ready("web"), within=5)
        await harness.stop_agent()
        agent = harness.new_agent()
        agent.engine.storage.merge(PodUpdate(Op.ADD, (created,), "api"))
        assert list(agent.engine.statuses.cached) == [harness.uid("web")]

    on_node(scenario)


def test_a_pod_deleted_while_the_runtime_is_unhealthy_gets_no_sandbox() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.volumes.faults.hang("mount", seconds=30)
        await harness.create(pod("web", container()))
        await asyncio.sleep(5)
        harness.runtime.faults.fail(Operation.HEALTH, times=None, error=RuntimeUnavailable)
        await asyncio.sleep(20)
        await harness.delete("web")
        await asyncio.sleep(60)
        assert [each for each in harness.runtime.call_log if each.operation == Operation.RUN_SANDBOX] == []

    on_node(scenario)


def test_a_pod_that_waits_for_preempted_pods_is_not_started_by_housekeeping() -> None:
    async def scenario(harness: NodeHarness) -> None:
        harness.runtime.behave("victim", "app", Behaviour(term_seconds=None))
        large = replace(container(), resources=ResourceRequirements(requests={"cpu": "40"}))
        await harness.create(pod("victim", large, grace=60))
        await harness.until(lambda: harness.phase("victim") == "Running", within=5)
        (critical,) = harness.files.write(
            "/manifests/a.yaml", pod("critical", large, priority=SYSTEM_CRITICAL_PRIORITY)
        )
        await asyncio.sleep(50)
        assert {uid for uid, _ in harness.runtime.live_containers()} == {harness.uid("victim")}
        await asyncio.sleep(20)
        assert {uid for uid, _ in harness.runtime.live_containers()} == {critical.metadata.uid}

    on_node(scenario)


def test_a_pod_that_an_old_list_lacks_keeps_its_state_until_the_api_confirms_its_removal() -> None:
    async def scenario(harness: NodeHarness) -> None:
        engine, uid = harness.agent.engine, PodUID("unknown")
        await asyncio.sleep(5)
        assert engine.orphans is not None
        assert engine.facts.is_removed(uid)
        async with asyncio.TaskGroup() as group:
            engine.orphans.check((PodRecord(uid=uid, name="x", namespace="default"),), group, lambda: None)
            assert not engine.facts.is_removed(uid)

    on_node(scenario)
