"""The plan of one sync, as data: `compute` makes it, `actions` says what it can hold."""

from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.compute import compute_pod_actions, is_stranded

__all__ = ["ContainerToKill", "ContainerToReset", "PodActions", "compute_pod_actions", "is_stranded"]
