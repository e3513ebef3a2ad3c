"""Container starts on a fake runtime: what the runtime receives besides the spec, and its configuration errors."""

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import EphemeralContainer
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.build import pod
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_harness import UID, ExecutionHarness, container, running_harness


def container_of(harness: ExecutionHarness, name: str) -> ContainerConfig:
    configs: list[ContainerConfig] = [
        call.given for call in harness.fake.call_log if call.operation == Operation.CREATE_CONTAINER
    ]
    return next(config for config in configs if config.container.name == name)


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
