"""Pods and runtime records for the tests of the plan, in a few words each."""

from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    EphemeralContainer,
    Pod,
    PodSpec,
    Probe,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime import ContainerRecord, ContainerState, NetworkMode, PodRecord, SandboxRecord
from podkeeper.rules.container_hash import container_hash

CREATED, RUNNING, EXITED, UNKNOWN = ContainerState


def container(name: str, policy: str | None = None, *, probed: bool = False, rule: str | None = None) -> Container:
    """A container; `rule` is what it asks for when it exits with 42."""
    on_42 = ContainerRestartRuleOnExitCodes(operator="In", values=(42,))
    return Container(
        name=name,
        image=f"registry.example/{name}:v1",
        restart_policy=policy,
        restart_policy_rules=None if rule is None else (ContainerRestartRule(action=rule, exit_codes=on_42),),
        liveness_probe=Probe() if probed else None,
        startup_probe=Probe() if probed else None,
    )


def pod(
    *apps: Container,
    init: tuple[Container, ...] = (),
    policy: str | None = "Always",
    debug: tuple[str, ...] = (),
    deleting: bool = False,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", deletion_timestamp="2000-01-01T00:00:00Z" if deleting else None),
        spec=PodSpec(
            containers=apps,
            init_containers=init or None,
            ephemeral_containers=tuple(EphemeralContainer(name=name) for name in debug) or None,
            restart_policy=policy,
        ),
    )


def ran(
    spec: Container, state: ContainerState, code: int = 0, *, changed: bool = False, run: int = 0, reason: str = ""
) -> ContainerRecord:
    made_from = "another spec" if changed else container_hash(spec)
    record = ContainerRecord(id=f"{spec.name}-{run}", name=spec.name, state=state, spec_hash=made_from)
    return replace(record, exit_code=code, reason=reason, restart_count=run)


SANDBOX = SandboxRecord(id="sb", ready=True, network=NetworkMode.POD, ip="10.0.0.1")
DEAD_SANDBOX = replace(SANDBOX, ready=False)


def runtime(*containers: ContainerRecord, sandbox: SandboxRecord | None = SANDBOX) -> PodRecord:
    return PodRecord(uid="uid", sandboxes=(sandbox,) if sandbox else (), containers=containers)
