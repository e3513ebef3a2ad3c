"""What the containers of a plan start in: the one thing that executing a plan needs beside the plan itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from podkeeper.rules.keyring import PullSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The sandbox of a pod, and what the pod stands on."""

    sandbox_id: str
    pod_ips: tuple[str, ...] = ()  # the primary one first
    volumes: Mapping[str, str] = field(default_factory=dict)  # host paths by the volume's name
    pull_secrets: Sequence[PullSecret] = ()  # docker configurations, those named first in front
