"""The sandbox in which containers start, with its volumes and secrets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from podkeeper.rules.images.keyring import PullSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxContext:
    """The sandbox of a pod, and what its containers need from the node."""

    sandbox_id: str
    pod_ips: tuple[str, ...] = ()  # the primary one first
    volumes: Mapping[str, str] = field(default_factory=dict)  # host paths by the volume's name
    pull_secrets: Sequence[PullSecret] = ()  # docker configurations, in the order of the spec
