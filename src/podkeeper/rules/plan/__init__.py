"""The plan of one sync, as data: `compute` returns it, `actions` defines it."""

from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.compute import compute_pod_actions, is_stranded

__all__ = ["ContainerToKill", "ContainerToReset", "PodActions", "compute_pod_actions", "is_stranded"]
