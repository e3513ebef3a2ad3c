"""What the runtime receives besides the spec: DNS configuration, image user, pod IPs, target containers."""

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import EphemeralContainer, Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime_calls import ContainerConfig, Dns, SandboxConfig
from podkeeper.rules.dns import PodDns
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.build import pod
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_harness import UID, ExecutionHarness, container, running_harness

DNS = Dns(servers=("10.0.0.10",), searches=("cluster.local",))


def sandbox_of(harness: ExecutionHarness) -> SandboxConfig:
    made: SandboxConfig = next(call.given for call in harness.fake.call_log if call.operation == Operation.RUN_SANDBOX)
    return made


def container_of(harness: ExecutionHarness, name: str) -> ContainerConfig:
    configs: list[ContainerConfig] = [
        call.given for call in harness.fake.call_log if call.operation == Operation.CREATE_CONTAINER
    ]
    return next(config for config in configs if config.container.name == name)


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


def test_a_container_gets_its_pod_ips_and_an_ephemeral_container_its_target() -> None:
    debug = EphemeralContainer(
        name="shell", image="shell:v1", image_pull_policy="IfNotPresent", target_container_name="web"
    )

    async def scenario() -> tuple[ContainerConfig, ContainerConfig, str, str]:
        async with running_harness() as harness:
            await harness.sync(pod("web", container("web")))
            await harness.sync(pod("web", container("web"), debug=(debug,)))
            record = await harness.inspect(UID)
            target = record.container("web")
            assert target is not None
            return container_of(harness, "web"), container_of(harness, "shell"), target.id, record.sandboxes[0].ip or ""

    (web, shell, target_id, address), _ = simulate(scenario())
    assert (web.pod_ips, web.target_id, web.image_user) == ((address,), "", "")
    assert (shell.pod_ips, shell.target_id) == ((address,), target_id)


def test_a_configuration_error_of_the_runtime_is_reported() -> None:
    async def scenario() -> str:
        async with running_harness() as harness:
            harness.fake.faults.fail(Operation.CREATE_CONTAINER, UID, error=NotConfigurable)
            await harness.try_sync(pod("web", container("web")))
            return harness.executor.failures_of(UID)["web"].reason

    assert simulate(scenario())[0] == "CreateContainerConfigError"
