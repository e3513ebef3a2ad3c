"""Plan execution: the order of the steps, the configuration of containers and sandboxes, and removals."""

import asyncio

from msgspec.structs import replace as changed

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapKeySelector,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    ObjectFieldSelector,
    Pod,
    VolumeMount,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import RecordState
from podkeeper.model.runtime_calls import ContainerConfig, Dns, Mount, SandboxConfig
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.dns import PodDns
from podkeeper.rules.plan import ContainerToReset, PodActions
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.build import pod
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.execution_harness import CHANGES, UID, ExecutionHarness, container, running_harness, sleep

CREATE, START = Operation.CREATE_CONTAINER, Operation.START_CONTAINER


def synced(of: Pod, syncs: int = 1) -> ExecutionHarness:
    """Return the harness after this number of successful syncs."""

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            for _ in range(syncs):
                await harness.sync(of)
            return harness

    return simulate(scenario())[0]


# Order.


def test_a_pod_begins_with_its_sandbox_and_then_its_containers_in_order() -> None:
    harness = synced(pod("web", container("web"), container("log")))
    assert harness.changes() == [
        (Operation.RUN_SANDBOX, ""),
        (CREATE, "web"), (START, "web"),
        (CREATE, "log"), (START, "log"),
    ]  # fmt: skip
    assert harness.events()[:4] == [
        ("Pulling", 'Pulling image "web:v1"'),
        ("Pulled", 'Successfully pulled image "web:v1" in 0s (0s including waiting). '
                   "Image size: 10485760 bytes."),
        ("Created", "Container created"),
        ("Started", "Container started"),
    ]  # fmt: skip
    assert {event.container_path for event in harness.recorded} == {"spec.containers{web}", "spec.containers{log}"}


def test_a_new_sandbox_is_reported_before_any_image_is_pulled() -> None:
    harness = synced(pod("web", container("web")))
    assert [(len(record.sandboxes), record.containers) for record in harness.ready] == [(1, ())]


def test_ephemeral_containers_start_before_init_and_app_containers() -> None:
    actions = PodActions(
        create_sandbox=True,
        ephemeral_containers_to_start=(0,),
        init_containers_to_start=(0,),
        containers_to_start=(0,),
    )
    spec = pod(
        "web", container("web"), init=(container("setup"),), debug=(EphemeralContainer(name="shell", image="sh:1"),)
    )

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await harness.executor.execute(
                spec, await harness.inspect(), actions, mounts={}, cgroup_parent="", pull_secrets=()
            )
            return harness

    assert [name for _, name in simulate(scenario())[0].changes(START)] == ["shell", "setup", "web"]


def test_a_post_start_hook_delays_the_next_container() -> None:
    async def scenario() -> list[tuple[str, float]]:
        async with running_harness() as harness:
            await harness.sync(pod("web", container("proxy", post_start=sleep(5)), container("web")))
            return [(call.subject, call.begun) for call in harness.fake.call_log if call.operation == START]

    assert simulate(scenario())[0] == [("proxy", 0.0), ("web", 5.0)]


def test_a_dead_sandbox_is_replaced_and_init_containers_run_again() -> None:
    spec = pod("web", container("web"), init=(container("setup"),))

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.behave("web", "setup", Behaviour(after_seconds=1))
            await harness.sync(spec)
            await asyncio.sleep(2)
            await harness.sync(spec)
            harness.fake.kill_sandbox(UID)
            before = len(harness.fake.call_log)
            await harness.sync(spec)
            calls = [(call.operation, call.subject) for call in list(harness.fake.call_log)[before:]]
            assert [call for call in calls if call[0] in CHANGES and call[0] != Operation.STOP_SANDBOX] == [
                (Operation.REMOVE_CONTAINER, "setup"),
                (Operation.RUN_SANDBOX, ""),
                (CREATE, "setup"),
                (START, "setup"),
            ]
            record = await harness.inspect()
            assert [sandbox.attempt for sandbox in record.sandboxes] == [1, 0]
            assert record.container("setup") is not None
            web = record.container("web")
            assert web is not None, "the exit code of an app container is not lost with its sandbox"
            assert web.exit_code == 137
            return harness

    harness = simulate(scenario())[0]
    text = "Pod sandbox changed, it will be killed and re-created."
    assert harness.events("SandboxChanged") == [("SandboxChanged", text)]
    assert not harness.fake.violations


def test_older_runs_of_init_containers_are_removed_before_the_next() -> None:
    spec = pod("web", container("web"), init=(container("setup"),))

    async def scenario() -> list[int]:
        async with running_harness() as harness:
            harness.fake.behave("web", "setup", Behaviour(after_seconds=1, exit_code=1))
            for _ in range(4):
                await harness.try_sync(spec)
                await asyncio.sleep(1000)
            return [found.restart_count for found in (await harness.inspect()).containers]

    assert simulate(scenario())[0] == [3, 2]


def test_containers_that_start_over_are_killed_without_grace_and_removed_in_order() -> None:
    spec = pod("web", container("a"), container("b", pre_stop=sleep(9)), grace=60)

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            harness.fake.behave("web", "*", Behaviour(term_seconds=None))
            await harness.sync(spec)
            record = await harness.inspect()
            ids = {found.name: found.id for found in record.containers}
            resets = tuple(ContainerToReset(ids[name], name, kill_first=True) for name in ("b", "a"))
            actions = PodActions(sandbox_id=record.sandboxes[0].id, containers_to_reset=resets)
            await harness.executor.execute(spec, record, actions, mounts={}, cgroup_parent="", pull_secrets=())
            assert (await harness.inspect()).containers == ()
            return harness

    harness, seconds = simulate(scenario())
    assert harness.stops() == [("b", 0.0, 2), ("a", 2.0, 2)]
    assert seconds == 4.0


def test_a_plan_that_only_kills_starts_nothing() -> None:
    spec = pod("web", container("web"), debug=(EphemeralContainer(name="shell", image="sh:1"),))
    actions = PodActions(kill_pod=True, ephemeral_containers_to_start=(0,))

    async def scenario() -> ExecutionHarness:
        async with running_harness() as harness:
            await harness.executor.execute(
                spec, await harness.inspect(), actions, mounts={}, cgroup_parent="", pull_secrets=()
            )
            return harness

    assert simulate(scenario())[0].changes() == []


# What a container is made from.


def test_a_container_is_created_from_its_spec_and_computed_values() -> None:
    web = changed(
        container("web"),
        command=("serve", "$(COLOUR)"),
        args=("--ip=$(IP)",),
        env=(
            EnvVar(
                name="COLOUR",
                value_from=EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name="paint", key="colour")),
            ),
            EnvVar(name="IP", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.podIP"))),
        ),
        volume_mounts=(VolumeMount(name="data", mount_path="/data", sub_path="$x", read_only=True),),
    )
    spec = pod("web", web)

    async def scenario() -> tuple[SandboxConfig, ContainerConfig]:
        api = MemoryApi(VirtualClock())
        paint = ConfigMap(metadata=ObjectMeta(name="paint", namespace="default"), data={"colour": "blue"})
        await api.create(paint)
        async with running_harness(api) as harness:
            await harness.sync(spec, mounts={"data": "/volumes/data"})
            given = {call.operation: call.given for call in harness.fake.call_log}
            return given[Operation.RUN_SANDBOX], given[CREATE]

    (sandbox, made), _ = simulate(scenario())
    assert (sandbox.hostname, sandbox.log_directory, sandbox.cgroup_parent) == (
        "web", "/var/log/pods/default_web_uid-web", "/pods",
    )  # fmt: skip
    assert (made.command, made.args) == (("serve", "blue"), (f"--ip={made.env['IP']}",))
    assert made.env["IP"].startswith("10.")
    shown = Mount(container_path="/data", host_path="/volumes/data", volume="data", sub_path="$x", read_only=True)
    assert made.mounts == (shown,)
    assert (made.attempt, made.log_path, made.spec_hash) == (0, "web/0.log", container_hash(web))
    assert made.image.startswith("sha256:")


def test_the_restart_count_continues_from_the_newest_record() -> None:
    spec = pod("web", container("web"))

    async def scenario() -> list[tuple[int, str]]:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(after_seconds=1, exit_code=1))
            for _ in range(3):
                await harness.sync(spec)
                await asyncio.sleep(1000)
            made = [call.given for call in harness.fake.call_log if call.operation == CREATE]
            return [(config.attempt, config.log_path) for config in made]

    assert simulate(scenario())[0] == [(0, "web/0.log"), (1, "web/1.log"), (2, "web/2.log")]


def test_a_host_network_pod_has_the_addresses_of_the_node() -> None:
    spec = pod(
        "web",
        changed(
            container("web"),
            env=(EnvVar(name="IP", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.podIP"))),),
        ),
    )
    spec = changed(spec, spec=changed(spec.spec, host_network=True))
    made = next(call.given for call in synced(spec).fake.call_log if call.operation == CREATE)
    assert made.env == {"IP": "192.0.2.1"}


# Removal of dead containers.


def test_the_newest_exit_of_each_container_is_kept() -> None:
    spec = pod("web", container("web"), container("log"))

    async def scenario() -> None:
        async with running_harness() as harness:
            harness.fake.behave("web", "*", Behaviour(after_seconds=1, exit_code=4))
            for _ in range(3):
                await harness.sync(spec)
                await asyncio.sleep(1000)
            record = await harness.inspect()
            web = record.container("web")
            assert web is not None
            await harness.executor.collect_dead_containers(record, container_id=web.id)
            record = await harness.inspect()
            counts = {name: [c.restart_count for c in record.containers if c.name == name] for name in ("web", "log")}
            assert counts == {"web": [2], "log": [2, 1, 0]}
            await harness.executor.collect_dead_containers(record)
            assert [found.exit_code for found in (await harness.inspect()).containers] == [4, 4]

    simulate(scenario())


def test_all_dead_containers_of_a_deleted_pod_are_removed() -> None:
    spec = pod("web", container("web"), container("log"))

    async def scenario() -> None:
        async with running_harness() as harness:
            await harness.sync(spec)
            harness.fake.end_container(UID, "web", 1)
            await harness.executor.collect_dead_containers(await harness.inspect(), everything=True)
            record = await harness.inspect()
            assert [(found.name, found.state) for found in record.containers] == [("log", RecordState.RUNNING)]
            await harness.kill(spec)
            await harness.executor.collect_dead_containers(await harness.inspect(), everything=True)
            record = await harness.inspect()
            assert (record.containers, record.sandboxes) == ((), ())

    simulate(scenario())


def test_a_failed_removal_prevents_no_other_removal() -> None:
    spec = pod("web", container("web"), container("log"), policy="Never")

    async def scenario() -> None:
        async with running_harness() as harness:
            await harness.sync(spec)
            await harness.kill(spec)
            harness.fake.faults.fail(Operation.REMOVE_CONTAINER, UID)
            record = changed(await harness.inspect(), sandboxes=())
            await harness.executor.collect_dead_containers(record, everything=True)
            assert len((await harness.inspect()).containers) == 1

    simulate(scenario())


# DNS of the sandbox.

DNS = Dns(servers=("10.0.0.10",), searches=("cluster.local",))


def sandbox_of(harness: ExecutionHarness) -> SandboxConfig:
    made: SandboxConfig = next(call.given for call in harness.fake.call_log if call.operation == Operation.RUN_SANDBOX)
    return made


def test_a_sandbox_gets_the_dns_configuration_and_its_warnings_are_recorded() -> None:
    warning = PodEvent(EventType.WARNING, "DNSConfigForming", "too many", "uid-web")

    async def lookup(pod: Pod) -> PodDns:
        return PodDns(DNS, (warning,))

    async def scenario() -> tuple[Dns | None, list[tuple[str, str]]]:
        async with running_harness(lookup=lookup) as harness:
            await harness.sync(pod("web", container("web")))
            return sandbox_of(harness).dns, harness.events("DNSConfigForming")

    found, _ = simulate(scenario())
    assert found == (DNS, [("DNSConfigForming", "too many")])


def test_without_a_lookup_the_runtime_configures_dns() -> None:
    async def scenario() -> Dns | None:
        async with running_harness() as harness:
            await harness.sync(pod("web", container("web")))
            return sandbox_of(harness).dns

    assert simulate(scenario())[0] is None


def test_no_sandbox_is_created_while_the_dns_configuration_is_not_available() -> None:
    async def lookup(pod: Pod) -> PodDns:
        raise NotConfigurable("cannot read the resolver file")

    async def scenario() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        async with running_harness(lookup=lookup) as harness:
            try:
                await harness.sync(pod("web", container("web")))
            except NotConfigurable:
                return harness.events(), harness.changes(Operation.RUN_SANDBOX)
            raise AssertionError("a sandbox was made")

    (events, made), _ = simulate(scenario())
    text = "Failed to create pod sandbox: cannot read the resolver file"
    assert (events, made) == ([("FailedCreatePodSandBox", text)], [])
