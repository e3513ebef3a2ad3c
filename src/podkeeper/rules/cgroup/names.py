"""Names and paths of pod cgroups, as directories and as systemd slices.

    ("kubepods", "burstable", "pod1234-abcd")                       a name: one part per level
      cgroupfs   /kubepods/burstable/pod1234-abcd
      systemd    kubepods-burstable-pod1234_abcd.slice              its unit
                 /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice     and its path

Container runtimes receive the path as cgroup parent, with both drivers. With systemd they use only its last part.
In a unit's name each "-" separates levels. So a dash within a part becomes "_". A UID that contains "_" could not be
recovered from its unit, so it gets no slice.

Kubelet counterparts: `CgroupName` and `ToSystemd` in pkg/kubelet/cm/cgroup_manager_linux.go.
"""

from collections.abc import Mapping
from typing import Final

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, qos_of

Name = tuple[str, ...]

BRANCHES: Final[Mapping[str, Name]] = {GUARANTEED: (), BURSTABLE: ("burstable",), BEST_EFFORT: ("besteffort",)}
"""The path of each QoS class below the common root."""

POD_PREFIX: Final = "pod"
SLICE: Final = ".slice"
_MAX_UNIT_LENGTH: Final = 255  # systemd's limit
_UNIT_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:.\\")


def name_of(root: str) -> Name:
    """Convert a path to a name. "/" is the empty name."""
    return tuple(part for part in root.split("/") if part)


def pod_name(root: Name, pod: Pod) -> Name:
    return (*root, *BRANCHES[qos_of(pod)], f"{POD_PREFIX}{pod.metadata.uid}")


def directory_path(name: Name) -> str:
    """Return the path of a cgroup below the mount point, with the cgroupfs driver."""
    return "/" + "/".join(name)


# ---- slices ----------------------------------------------------------------------------------


def slice_unit(name: Name) -> str:
    """Return the unit of a cgroup, with the systemd driver."""
    return ("-".join(part.replace("-", "_") for part in name) or "-") + SLICE


def slice_parts(name: Name) -> Name:
    """Return the directories on the path to a slice: each unit lies inside the units that its name starts with."""
    return tuple(slice_unit(name[:depth]) for depth in range(1, len(name) + 1))


def slice_path(name: Name) -> str:
    """Return the path of a slice below the mount point."""
    return directory_path(slice_parts(name))


def pod_of_slice(unit: str, branch: Name) -> PodUID | None:
    """Return the UID of the pod whose slice is directly below a branch, None if the unit is no pod's slice."""
    prefix = slice_unit((*branch, POD_PREFIX)).removesuffix(SLICE)
    uid = unit.removeprefix(prefix).removesuffix(SLICE)
    if f"{prefix}{uid}{SLICE}" != unit or not uid or "-" in uid:
        return None
    return PodUID(uid.replace("_", "-"))


def slice_name_error(uid: str) -> str:
    """Return why a UID cannot be part of a slice name. "": it can."""
    if not uid:
        return "is empty"
    if invalid := sorted(set(uid) - _UNIT_CHARACTERS - {"-"}):
        return f"contains {', '.join(map(repr, invalid))}, which slice names must not contain"
    return (
        f"is too long: a slice name may have {_MAX_UNIT_LENGTH} characters" if len(uid) > _MAX_UNIT_LENGTH // 2 else ""
    )
