"""Plans with failing steps, and cancelled syncs: which other steps they prevent."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace as changed

from podkeeper.model.errors import InBackoff, NetworkNotReady, RuntimeRefused, TryLater
from podkeeper.model.k8s.core import (
    ConfigMapKeySelector,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    Pod,
    SecurityContext,
)
from podkeeper.model.messages import PodUID
from podkeeper.rules.backoff.table import latest_exit
from podkeeper.rules.plan import PodActions
from podkeeper.rules.status.containers import StartFailure
from podkeeper.runtimes.fake import Behaviour, ExecStep, Operation
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.execution_harness import UID, ExecutionHarness, container, running_harness, sleep

CREATE, START = Operation.CREATE_CONTAINER, Operation.START_CONTAINER


# What fails, and what that holds up.


def failing(of: Pod, *faults: tuple[str, str | None]) -> tuple[ExecutionHarness, list[Exception]]:
    """Run one sync in which these operations fail. Return its errors."""

    async def scenario() -> tuple[ExecutionHarness, list[Exception]]:
        async with running_harness() as harness:
            harness.fake.missing_images.add("absent:v1")
            for operation, about in faults:
                harness.fake.faults.fail(operation, about)
            return harness, list(await harness.try_sync(of))

    return simulate(scenario())[0]


def waiting(harness: ExecutionHarness) -> dict[str, str]:
    return {name: failure.reason for name, failure in harness.executor.failures_of(UID).items()}


def test_a_failed_image_of_one_container_does_not_block_another() -> None:
    harness, errors = failing(pod("web", container("absent"), container("web")))
    assert [name for _, name in harness.changes(START)] == ["web"]
    assert waiting(harness) == {"absent": "ErrImagePull"}
    assert len(errors) == 1
    assert harness.events("Failed")[-1] == ("Failed", "Error: ErrImagePull")


def test_a_failed_container_creation_is_reported() -> None:
    harness, _ = failing(pod("web", container("web"), container("log")), (CREATE, UID))
    assert harness.executor.failures_of(UID) == {
        "web": StartFailure("CreateContainerError", "cannot create_container web: injected fault")
    }
    assert harness.events("Failed") == [("Failed", "Error: cannot create_container web: injected fault")]
    assert [name for _, name in harness.changes(START)] == ["log"]


def test_a_failed_container_start_is_reported() -> None:
    harness, _ = failing(pod("web", container("web")), (START, UID))
    assert waiting(harness) == {"web": "RunContainerError"}
    assert [reason for reason, _ in harness.events()][-2:] == ["Created", "Failed"]


def test_a_missing_config_map_is_reported() -> None:
    source = EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name="missing", key="k"))
    spec = pod("web", changed(container("web"), env=(EnvVar(name="A", value_from=source),)), container("log"))

    async def scenario() -> ExecutionHarness:
        async with running_harness(MemoryApi(VirtualClock())) as harness:
            await harness.try_sync(spec)
            return harness

    harness = simulate(scenario())[0]
    assert harness.executor.failures_of(UID) == {
        "web": StartFailure("CreateContainerConfigError", 'configmap "missing" not found')
    }
    assert harness.events("Failed") == [("Failed", 'Error: configmap "missing" not found')]
    assert [name for _, name in harness.changes(START)] == ["log"]


def test_without_an_api_a_reference_to_an_object_fails() -> None:
    source = EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name="paint", key="k"))
    harness, _ = failing(pod("web", changed(container("web"), env=(EnvVar(name="A", value_from=source),))))
    failure = harness.executor.failures_of(UID)["web"]
    assert failure.message == "couldn't get configMap default/paint, no kubeClient defined"


def test_run_as_non_root_is_enforced() -> None:
    harness, _ = failing(pod("web", changed(container("web"), security_context=SecurityContext(run_as_non_root=True))))
    assert waiting(harness) == {"web": "CreateContainerConfigError"}


def test_an_ephemeral_container_needs_its_target() -> None:
    spec = pod(
        "web", container("web"), debug=(EphemeralContainer(name="shell", image="sh:1", target_container_name="gone"),)
    )

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await harness.sync(spec)
            await harness.try_sync(spec)
            return harness

    failure = simulate(scenario())[0].executor.failures_of(UID)["shell"]
    assert failure == StartFailure("CreateContainerConfigError", "unable to find target container gone")


def test_a_failed_init_container_blocks_the_rest_but_a_sidecar_does_not() -> None:
    actions = PodActions(create_sandbox=True, init_containers_to_start=(0, 1), containers_to_start=(0,))

    async def started(*init: str) -> list[str]:
        async with running_harness() as harness:
            harness.fake.missing_images.add("absent:v1")
            spec = pod(
                "web", container("web"), init=(container("absent", sidecar="sidecar" in init), container("setup"))
            )
            with pytest.raises(ExceptionGroup):
                await harness.executor.execute(
                    spec, await harness.inspect(), actions, mounts={}, cgroup_parent="", pull_secrets=()
                )
            return [name for _, name in harness.changes(START)]

    assert simulate(started())[0] == []
    assert simulate(started("sidecar"))[0] == ["setup", "web"]


def test_a_failed_post_start_hook_kills_its_container() -> None:
    spec = pod("web", container("web", post_start=exec_hook("fail"), pre_stop=sleep(3)), container("log"), grace=30)

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(exec=(ExecStep(exit_code=9, output="bad\n"),)))
            await harness.try_sync(spec)
            assert [record.name for _, record in harness.fake.live_containers()] == ["log"]
            return harness

    harness = simulate(scenario())[0]
    assert harness.events("FailedPostStartHook", "Killing") == [
        ("FailedPostStartHook", "PostStartHook failed"),
        ("Killing", "FailedPostStartHook"),
    ]
    failure = harness.executor.failures_of(UID)["web"]
    assert failure.reason == "PostStartHookError"
    assert failure.message.startswith("Exec lifecycle hook ([fail])")
    assert harness.stops() == [("web", 3.0, 27)]


def test_a_crashing_container_backs_off_and_shows_the_retry_time() -> None:
    spec = pod("web", container("web"), container("log"))

    async def scenario() -> None:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(after_seconds=1, exit_code=1))
            await harness.sync(spec)
            await asyncio.sleep(2)
            await harness.sync(spec)
            await asyncio.sleep(2)
            (error,) = await harness.try_sync(spec)
            assert isinstance(error, InBackoff)
            last = latest_exit(await harness.inspect(), "web")
            assert last is not None
            assert last.finished_at is not None
            assert error.until == last.finished_at + timedelta(seconds=10)
            assert harness.executor.failures_of(UID)["web"].reason == "CrashLoopBackOff"
            assert harness.recorded[-1].reason == "BackOff"
            assert harness.recorded[-1].container_path == "spec.containers{web}"
            await asyncio.sleep(10)
            await harness.sync(spec)
            assert harness.executor.failures_of(UID) == {}

    simulate(scenario())


def test_a_pod_may_configure_a_shorter_crash_loop_backoff() -> None:
    spec = pod("web", container("web"), annotations={"podkeeper.io/restart-backoff-initial": "1s"})

    async def scenario() -> int:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(after_seconds=1, exit_code=1))
            for _ in range(3):
                await harness.try_sync(spec)
                await asyncio.sleep(2)
            return len(harness.changes(START))

    assert simulate(scenario())[0] == 3


@pytest.mark.parametrize("error", [RuntimeRefused, NetworkNotReady])
def test_without_a_sandbox_nothing_starts(error: type[TryLater]) -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.faults.fail(Operation.RUN_SANDBOX, UID, error=error)
            with pytest.raises(error):
                await harness.sync(pod("web", container("web")))
            return harness

    harness = simulate(scenario())[0]
    assert [name for name, _ in harness.changes()] == [Operation.RUN_SANDBOX]
    text = "Failed to create pod sandbox: cannot run_sandbox uid-web: injected fault"
    assert harness.events() == [("FailedCreatePodSandBox", text)]


def test_a_sandbox_that_cannot_be_inspected_starts_nothing() -> None:
    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await harness.inspect()
            spec = pod("web", container("web"))
            record = await harness.inspect()
            harness.fake.faults.fail(Operation.POD_RECORD, UID)
            actions = PodActions(create_sandbox=True, containers_to_start=(0,))
            with pytest.raises(RuntimeRefused):
                await harness.executor.execute(spec, record, actions, mounts={}, cgroup_parent="", pull_secrets=())
            return harness

    harness = simulate(scenario())[0]
    assert [reason for reason, _ in harness.events()] == ["FailedPodSandBoxStatus"]
    assert harness.changes(CREATE) == []


def test_a_failed_stop_prevents_all_starts() -> None:
    newer = pod("web", container("web", image="web:v2"))

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await harness.sync(pod("web", container("web")))
            harness.fake.faults.fail(Operation.STOP_CONTAINER, UID)
            with pytest.raises(ExceptionGroup, match="cannot stop"):
                await harness.sync(newer)
            assert len(harness.changes(CREATE)) == 1
            await harness.sync(newer)
            return harness

    harness = simulate(scenario())[0]
    assert len(harness.changes(CREATE)) == 2
    assert not harness.fake.violations, "never two of one container"


def test_failures_are_dropped_with_their_pod_and_the_oldest_first() -> None:
    async def scenario() -> list[bool]:
        async with running_harness() as harness:
            harness.fake.missing_images.add("absent:v1")
            for name in ("a", "b", "c"):
                await harness.try_sync(pod(name, container("absent")))
            harness.executor.forget(PodUID("uid-c"))
            return [bool(harness.executor.failures_of(PodUID(f"uid-{name}"))) for name in ("a", "b", "c")]

    assert simulate(scenario())[0] == [False, True, False]


def test_failures_are_immutable_and_stay_until_a_change() -> None:
    async def scenario() -> None:
        async with running_harness() as harness:
            harness.fake.missing_images.add("absent:v1")
            spec = pod("web", container("absent"), container("web"))
            before = harness.executor.failures_of(UID)
            await harness.try_sync(spec)
            await harness.try_sync(spec)
            failures = harness.executor.failures_of(UID)
            await harness.try_sync(spec)
            assert harness.executor.failures_of(UID) is failures
            harness.fake.missing_images.clear()
            await asyncio.sleep(60)
            await harness.sync(spec)
            assert (before, list(failures), harness.executor.failures_of(UID)) == ({}, ["absent"], {})

    simulate(scenario())


# Cut short.

STEPS = {
    # the step under way -> what has been changed in the end
    "the sandbox": (Operation.RUN_SANDBOX, [Operation.RUN_SANDBOX]),
    "the inspection of the sandbox": (Operation.POD_RECORD, [Operation.RUN_SANDBOX]),
    "the inspection of the image": (Operation.IMAGE, [Operation.RUN_SANDBOX]),
    "the pull": (Operation.PULL_IMAGE, [Operation.RUN_SANDBOX]),
    "the creation": (CREATE, [Operation.RUN_SANDBOX, CREATE]),
    "the start": (START, [Operation.RUN_SANDBOX, CREATE, START]),
    "the hook": (Operation.EXEC_SYNC, [Operation.RUN_SANDBOX, CREATE, START]),
}
COMPLETED = (Operation.RUN_SANDBOX, CREATE, START)


@pytest.mark.parametrize("step, changes", STEPS.values(), ids=STEPS.keys())
def test_a_cancelled_sync_completes_its_step_and_begins_no_other(step: str, changes: list[str]) -> None:
    spec = pod("web", container("web", post_start=exec_hook("warm-up")), container("log"))
    actions = PodActions(create_sandbox=True, containers_to_start=(0, 1))

    async def scenario() -> None:
        async with running_harness() as harness:
            record = await harness.inspect()
            harness.fake.delays[step] = 5
            async with asyncio.TaskGroup() as group:
                sync = group.create_task(
                    harness.executor.execute(spec, record, actions, mounts={}, cgroup_parent="", pull_secrets=())
                )
                await asyncio.sleep(2)
                sync.cancel()
                await asyncio.wait({sync})
                assert harness.clock.monotonic() == (5 if step in COMPLETED else 2)
            assert sync.cancelled()
            await asyncio.sleep(100)
            assert [name for name, _ in harness.changes()] == changes
            under_way = [call for call in harness.fake.call_log if call.operation == step]
            if step in (*COMPLETED, Operation.PULL_IMAGE):
                assert [call.error for call in under_way] == [""], "it was completed"

    simulate(scenario())


def test_a_sync_cancelled_during_a_stop_completes_the_stop_and_starts_nothing() -> None:
    newer = pod("web", container("web", image="web:v2"), grace=30)

    async def scenario() -> None:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(term_seconds=20))
            await harness.sync(pod("web", container("web"), grace=30))
            async with asyncio.TaskGroup() as group:
                sync = group.create_task(harness.sync(newer))
                await asyncio.sleep(2)
                sync.cancel()
                await asyncio.wait({sync})
                assert harness.clock.monotonic() == 2
            await asyncio.sleep(100)
            await harness.note_exits()
            assert harness.ended == {"web": (20.0, 0)}
            assert len(harness.changes(CREATE)) == 1

    simulate(scenario())
