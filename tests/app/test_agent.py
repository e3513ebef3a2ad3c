"""The whole agent in virtual time: pods live and end, and one pod's trouble is nobody else's."""

import asyncio
import math

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import Op, PodUID, PodUpdate, ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.runtimes.fake import Behaviour
from tests.app.node_house import NodeHouse, container, in_node_house, pod

NAMES = [f"pod-{index:02}" for index in range(50)]


def test_a_pod_becomes_ready_and_is_gone_after_its_deletion() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(pod("web"))
        await house.until(lambda: house.is_ready("web"), within=5)
        await house.delete("web")
        await house.until(lambda: house.phase("web") == "gone", within=5)
        await asyncio.sleep(5)
        assert house.runtime.live_containers() == []
        assert await house.cgroups.list_pods() == frozenset()
        assert house.volumes.mounted_pods() == frozenset()

    in_node_house(scenario)


def test_a_job_succeeds_and_a_crash_loop_backs_off() -> None:
    async def scenario(house: NodeHouse) -> None:
        house.runtime.behave("job", "app", Behaviour(after_seconds=3, exit_code=0))
        house.runtime.behave("crash", "app", Behaviour(after_seconds=1, exit_code=2))
        await house.create(
            pod("job", container(probe_seconds=None), policy="Never"), pod("crash", container(probe_seconds=None))
        )
        await house.until(lambda: house.phase("job") == "Succeeded", within=5)
        await asyncio.sleep(60)
        found = house.in_api("crash")
        assert found is not None
        (status,) = found.status.container_statuses or ()
        # It starts at 0, 1 (no wait the first time), then 10 and 20 s after each exit.
        assert status.restart_count == 3
        assert status.state.waiting is not None
        assert status.state.waiting.reason == "CrashLoopBackOff"

    in_node_house(scenario)


def test_a_late_success_of_a_readiness_probe_makes_no_exited_container_ready() -> None:
    async def scenario(house: NodeHouse) -> None:
        house.runtime.behave("job", "app", Behaviour(after_seconds=3, exit_code=0))
        await house.create(pod("job", policy="Never"))
        await house.until(lambda: house.phase("job") == "Succeeded", within=10)
        found = house.agent.statuses.get_pod_status(house.uid("job"))
        assert found is not None
        (status,) = found.container_statuses or ()
        assert not house.agent.statuses.set_container_readiness(house.uid("job"), status.container_id or "", True)

    in_node_house(scenario)


HUNG = {
    "a sandbox that never comes up": lambda house, uid, name: house.runtime.faults.hang("run_sandbox", uid),
    "a container that never starts": lambda house, uid, name: house.runtime.faults.hang("start_container", uid),
    "an image that never comes": lambda house, uid, name: house.runtime.faults.hang("pull_image", f"{name}:v1"),
    "a look that never ends": lambda house, uid, name: house.runtime.faults.hang("pod_record", uid, times=None),
    "a probe that never ends": lambda house, uid, name: house.runtime.faults.hang("exec_sync", uid, times=None),
    "a volume that never mounts": lambda house, uid, name: house.volumes.faults.hang("mount", uid, times=None),
    "a cgroup that is never made": lambda house, uid, name: house.cgroups.faults.hang("ensure", uid, times=None),
    "a status the API never takes": lambda house, uid, name: house.api.faults.hang("patch_status", name, times=None),
    "a pod the API never shows": lambda house, uid, name: house.api.faults.hang("get", name, times=None),
}


@pytest.mark.parametrize("plant", HUNG.values(), ids=HUNG.keys())
def test_one_pods_hung_call_delays_no_other_pod_and_no_housekeeping(plant: object) -> None:
    async def scenario(house: NodeHouse) -> None:
        assert callable(plant)
        created = await house.create(*(pod(name, container(name)) for name in NAMES))
        culprit = created[0]
        plant(house, PodUID(culprit.metadata.uid or ""), NAMES[0])
        others = NAMES[1:]
        seconds = await house.until(lambda: all(map(house.is_ready, others)), within=20)
        assert seconds <= 1, f"the others waited {seconds} s"
        # Housekeeping goes on: what nobody wants is killed, what is deleted goes.
        for name in others[:25]:
            await house.delete(name)
        await house.until(lambda: all(house.phase(name) == "gone" for name in others[:25]), within=3)
        await house.create(pod("late"))
        await house.until(lambda: house.is_ready("late"), within=3)

    in_node_house(scenario)


def test_deleting_waits_for_nobody_else() -> None:
    async def scenario(house: NodeHouse) -> None:
        house.runtime.behave(NAMES[0], "app", Behaviour(term_seconds=None))
        await house.create(*(pod(name, grace=600) for name in NAMES))
        await house.until(lambda: all(map(house.is_ready, NAMES)), within=10)
        for name in NAMES:
            await house.delete(name)
        await house.until(lambda: all(house.phase(name) == "gone" for name in NAMES[1:]), within=5)
        assert house.phase(NAMES[0]) == "Running"
        await house.delete(NAMES[0], grace=2)
        await house.until(lambda: house.phase(NAMES[0]) == "gone", within=5)

    in_node_house(scenario)


def test_a_restarted_agent_restarts_nothing_and_flaps_no_ready_bit() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(*(pod(name) for name in NAMES[:10]))
        await house.until(lambda: all(map(house.is_ready, NAMES[:10])), within=5)
        before = {(uid, record.id) for uid, record in house.runtime.live_containers()}
        await house.restart_agent()
        for _ in range(100):
            await asyncio.sleep(1)
            assert all(map(house.is_ready, NAMES[:10]))
        assert {(uid, record.id) for uid, record in house.runtime.live_containers()} == before

    in_node_house(scenario)


def test_what_died_while_no_agent_lived_is_reported() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(pod("job", container(probe_seconds=None), policy="Never"))
        await house.until(lambda: house.phase("job") == "Running", within=5)
        await house.stop_agent()
        house.runtime.end_container(house.uid("job"), "app", 7)
        await asyncio.sleep(30)
        await house.restart_agent()
        await house.until(lambda: house.phase("job") == "Failed", within=5)
        found = house.in_api("job")
        assert found is not None
        (status,) = found.status.container_statuses or ()
        assert status.state.terminated is not None
        assert (status.state.terminated.exit_code, status.restart_count) == (7, 0)

    in_node_house(scenario)


def test_a_pod_that_is_over_in_the_api_but_runs_is_stopped_by_a_new_agent() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(pod("job", container(probe_seconds=None), policy="Never"))
        await house.until(lambda: house.phase("job") == "Running", within=5)
        await house.stop_agent()
        found = house.in_api("job")
        assert found is not None
        house.api.put(replace(found, status=replace(found.status, phase="Failed")))
        house.runtime.delays["list_pods"] = house.runtime.delays["pod_record"] = 0.5
        await house.restart_agent()
        await house.until(lambda: not house.runtime.live_containers(), within=60)

    in_node_house(scenario)


def test_a_static_pod_runs_without_an_api_and_its_successor_starts_at_once() -> None:
    async def scenario(house: NodeHouse) -> None:
        house.api.go_down()
        (first,) = house.files.write("/manifests/web.yaml", pod("web", container(probe_seconds=None)))
        await asyncio.sleep(5)
        live = {uid for uid, _ in house.runtime.live_containers()}
        # Nothing of another source is known yet, and still the static pod runs.
        assert live == {first.metadata.uid}
        (second,) = house.files.write("/manifests/web.yaml", pod("web", container("other", probe_seconds=None)))
        house.api.come_up()
        await house.until(
            lambda: {uid for uid, _ in house.runtime.live_containers()} == {second.metadata.uid}, within=60, step=0.01
        )
        stopped = max(call.ended or math.inf for call in house.runtime.ledger if call.operation == "stop_container")
        started = [call.begun for call in house.runtime.ledger if call.operation == "run_sandbox"][-1]
        assert started - stopped < 1

    in_node_house(scenario)


def test_bad_input_is_refused_and_everybody_else_goes_on() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(pod("web"))
        await house.until(lambda: house.is_ready("web"), within=5)
        agent, stranger = house.agent, PodUID("nobody")
        nameless = Pod(metadata=ObjectMeta(name="x"), spec=PodSpec())
        with pytest.raises(BadInput, match="uid"):
            agent.storage.merge(PodUpdate(Op.ADD, (nameless,), "api"))
        with pytest.raises(BadInput, match="no operation"):
            agent.storage.merge(PodUpdate("REPLACE", (), "api"))  # type: ignore[arg-type]  # the point
        agent.loop.tell_config(PodUpdate("REPLACE", (nameless,), "api"))  # type: ignore[arg-type]  # the point
        agent.loop.tell_probe(ProbeUpdate(ProbeKind.LIVENESS, stranger, "fake://dead", ProbeResult.FAILURE))
        agent.loop.tell_probe(ProbeUpdate(ProbeKind.READINESS, house.uid("web"), "fake://dead", ProbeResult.FAILURE))
        assert not agent.statuses.set_container_readiness(stranger, "fake://dead", False)
        await asyncio.sleep(5)
        assert house.is_ready("web")
        await house.create(pod("late"))
        await house.until(lambda: house.is_ready("late"), within=5)

    in_node_house(scenario)


def test_a_deadline_ends_a_pod() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(pod("short", deadline=30))
        await house.until(lambda: house.phase("short") == "Failed", within=40)
        found = house.in_api("short")
        assert found is not None
        assert found.status.reason == "DeadlineExceeded"

    in_node_house(scenario)


def test_every_pod_can_explain_itself() -> None:
    async def scenario(house: NodeHouse) -> None:
        house.runtime.behave("crash", "app", Behaviour(after_seconds=1, exit_code=2))
        await house.create(pod("crash", container(probe_seconds=None)))
        await asyncio.sleep(20)
        explanation = house.agent.explain(house.uid("crash"))
        assert explanation.state == "syncing"
        assert explanation.next_retry is not None
        assert "back-off" in (explanation.waiting_for or "")
        assert any("BackOff" in entry.what or "back-off" in entry.detail.lower() for entry in explanation.timeline)
        assert house.agent.health() == ()
        assert b"kubelet_pod_worker_duration_seconds" in house.agent.metrics.exposition()

    in_node_house(scenario)


def test_a_quiet_node_is_left_in_peace_and_still_notices_what_nobody_wants() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(*(pod(name) for name in NAMES[:5]))
        await house.until(lambda: all(map(house.is_ready, NAMES[:5])), within=5)
        await asyncio.sleep(30)
        begun = house.clock.monotonic()
        await asyncio.sleep(60)
        listings = [each for each in house.runtime.ledger if each.operation == "list_pods" and each.begun > begun]
        assert len(listings) <= 4, "two rounds of housekeeping and a relist would do"
        stranger = replace(pod("stranger"), metadata=ObjectMeta(name="stranger", namespace="default", uid="stranger"))
        await house.runtime.run_sandbox(SandboxConfig(pod=stranger, attempt=0))
        await house.until(
            lambda: any(each.operation == "stop_sandbox" and each.about == "stranger" for each in house.runtime.ledger),
            within=5,
        )

    in_node_house(scenario)


def test_before_a_graceful_end_the_api_is_told_what_it_has_missed() -> None:
    async def scenario(house: NodeHouse) -> None:
        await house.create(pod("job", container(probe_seconds=None), policy="Never"))
        await house.until(lambda: house.phase("job") == "Running", within=5)
        house.api.go_down()
        house.runtime.end_container(house.uid("job"), "app", 0)
        await asyncio.sleep(300)
        house.api.come_up()
        await house.agent.flush(within_seconds=5)
        assert house.phase("job") == "Succeeded"

    in_node_house(scenario)


def test_nothing_is_left_in_the_runtime_of_a_pod_that_is_gone() -> None:
    async def scenario(house: NodeHouse) -> list[str]:
        await house.create(pod("web"), pod("stays"))
        await house.until(lambda: house.is_ready("web"), within=5)
        await house.delete("web")
        await house.until(lambda: house.in_api("web") is None, within=5)
        await asyncio.sleep(5)
        return [record.name for record in await house.runtime.list_pods()]

    assert in_node_house(scenario) == ["stays"]
