"""What a runtime is handed besides the spec: how names are looked up, who the image runs as, addresses, targets."""

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import EphemeralContainer, Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime_calls import ContainerConfig, Dns, SandboxConfig
from podkeeper.rules.dns import Lookup
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_house import UID, House, container, house, pod

DNS = Dns(servers=("10.0.0.10",), searches=("cluster.local",))


def sandbox_of(home: House) -> SandboxConfig:
    made: SandboxConfig = next(call.given for call in home.fake.ledger if call.operation == Operation.RUN_SANDBOX)
    return made


def container_of(home: House, name: str) -> ContainerConfig:
    configs: list[ContainerConfig] = [
        call.given for call in home.fake.ledger if call.operation == Operation.CREATE_CONTAINER
    ]
    return next(config for config in configs if config.container.name == name)


def test_a_sandbox_is_told_how_names_are_looked_up_and_the_owner_what_was_left_out() -> None:
    warning = PodEvent(EventType.WARNING, "DNSConfigForming", "too many", "uid-web")

    async def lookup(pod: Pod) -> Lookup:
        return Lookup(DNS, (warning,))

    async def scenario() -> tuple[Dns | None, list[tuple[str, str]]]:
        async with house(lookup=lookup) as home:
            await home.sync(pod(container("web")))
            return sandbox_of(home).dns, home.events("DNSConfigForming")

    found, _ = simulate(scenario())
    assert found == (DNS, [("DNSConfigForming", "too many")])


def test_unless_somebody_knows_it_is_left_to_the_runtime() -> None:
    async def scenario() -> Dns | None:
        async with house() as home:
            await home.sync(pod(container("web")))
            return sandbox_of(home).dns

    assert simulate(scenario())[0] is None


def test_no_sandbox_is_made_while_nobody_can_say_how_names_are_looked_up() -> None:
    async def lookup(pod: Pod) -> Lookup:
        raise NotConfigurable("cannot read the resolver file")

    async def scenario() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        async with house(lookup=lookup) as home:
            try:
                await home.sync(pod(container("web")))
            except NotConfigurable:
                return home.events(), home.changes(Operation.RUN_SANDBOX)
            raise AssertionError("a sandbox was made")

    (events, made), _ = simulate(scenario())
    text = "Failed to create pod sandbox: cannot read the resolver file"
    assert (events, made) == ([("FailedCreatePodSandBox", text)], [])


def test_a_container_is_told_its_addresses_and_an_ephemeral_one_its_target() -> None:
    debug = EphemeralContainer(
        name="shell", image="registry.example/shell:v1", image_pull_policy="IfNotPresent", target_container_name="web"
    )

    async def scenario() -> tuple[ContainerConfig, ContainerConfig, str, str]:
        async with house() as home:
            await home.sync(pod(container("web")))
            await home.sync(pod(container("web"), debug=(debug,)))
            record = await home.look(UID)
            target = record.container("web")
            assert target is not None
            return container_of(home, "web"), container_of(home, "shell"), target.id, record.sandboxes[0].ip or ""

    (web, shell, target_id, address), _ = simulate(scenario())
    assert (web.pod_ips, web.target_id, web.image_user) == ((address,), "", "")
    assert (shell.pod_ips, shell.target_id) == ((address,), target_id)


def test_what_a_runtime_finds_cannot_be_configured_is_said_so() -> None:
    async def scenario() -> str:
        async with house() as home:
            home.fake.faults.fail(Operation.CREATE_CONTAINER, UID, error=NotConfigurable)
            await home.try_sync(pod(container("web")))
            return home.executor.failures_of(UID)["web"].reason

    assert simulate(scenario())[0] == "CreateContainerConfigError"
