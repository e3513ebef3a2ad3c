"""Small pods and runtime records for the tests of the plan."""

from functools import partial

from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    Container,
    EphemeralContainer,
)
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.container.hash import container_hash
from podkeeper.testing import build

CREATED, RUNNING, EXITED, UNKNOWN = RecordState


pod = partial(build.pod, "web")


def debug(*names: str) -> tuple[EphemeralContainer, ...]:
    return tuple(EphemeralContainer(name=name) for name in names)


def ran(
    spec: Container, state: RecordState, code: int = 0, *, changed: bool = False, run: int = 0, reason: str = ""
) -> ContainerRecord:
    made_from = "another spec" if changed else container_hash(spec)
    record = ContainerRecord(id=f"{spec.name}-{run}", name=spec.name, state=state, spec_hash=made_from)
    return replace(record, exit_code=code, reason=reason, restart_count=run)


SANDBOX = SandboxRecord(id="sb", ready=True, network=NetworkMode.POD, ip="10.0.0.1")
DEAD_SANDBOX = replace(SANDBOX, ready=False)


def runtime(*containers: ContainerRecord, sandbox: SandboxRecord | None = SANDBOX) -> PodRecord:
    return PodRecord(uid="uid", sandboxes=(sandbox,) if sandbox else (), containers=containers)
