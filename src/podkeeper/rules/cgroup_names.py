"""Where a pod's cgroup is, and what it is called: as directories, and as systemd's slices.

    ("kubepods", "burstable", "pod1234-abcd")                       a name: one part for each step down
      cgroupfs   /kubepods/burstable/pod1234-abcd
      systemd    kubepods-burstable-pod1234_abcd.slice              its unit
                 /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice     and its path

The path is what container runtimes are told as cgroup parent, under both drivers; under systemd they use only its last
part. A unit's name says where it stands: each "-" is a step down. So a dash within a part becomes "_", and a UID that
has a "_" of its own could not be told from its unit any more: it gets none. The Go ancestors are `CgroupName` and
`ToSystemd` in pkg/kubelet/cm/cgroup_manager_linux.go.
"""

from collections.abc import Mapping
from typing import Final

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, qos_of

Name = tuple[str, ...]

BRANCHES: Final[Mapping[str, Name]] = {GUARANTEED: (), BURSTABLE: ("burstable",), BEST_EFFORT: ("besteffort",)}
"""Where pods of each class are below the root that all have in common; what is further down comes later."""

POD_PREFIX: Final = "pod"
SLICE: Final = ".slice"
_LONGEST_UNIT: Final = 255  # systemd's own bound
_OF_UNITS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:.\\")


def name_of(root: str) -> Name:
    """A path as a name: "/" is nobody's."""
    return tuple(part for part in root.split("/") if part)


def pod_name(root: Name, pod: Pod) -> Name:
    """The name of a pod's cgroup."""
    return (*root, *BRANCHES[qos_of(pod)], f"{POD_PREFIX}{pod.metadata.uid}")


def directory_path(name: Name) -> str:
    """Where a cgroup is below the mount points, under the driver cgroupfs."""
    return "/" + "/".join(name)


# ---- slices ----------------------------------------------------------------------------------


def slice_unit(name: Name) -> str:
    """The unit that a cgroup is, under the driver systemd."""
    return ("-".join(part.replace("-", "_") for part in name) or "-") + SLICE


def slice_parts(name: Name) -> Name:
    """The directories that lead to it: a unit is inside those that its name begins with."""
    return tuple(slice_unit(name[:depth]) for depth in range(1, len(name) + 1))


def slice_path(name: Name) -> str:
    """Where it is below the mount points."""
    return directory_path(slice_parts(name))


def pod_of_slice(unit: str, branch: Name) -> PodUID | None:
    """The pod that a unit directly below a branch is; None: it is none."""
    above = slice_unit((*branch, POD_PREFIX)).removesuffix(SLICE)
    uid = unit.removeprefix(above).removesuffix(SLICE)
    if f"{above}{uid}{SLICE}" != unit or not uid or "-" in uid:
        return None
    return PodUID(uid.replace("_", "-"))


def slice_trouble(uid: str) -> str:
    """Why a pod of this UID can have no slice; empty: it can."""
    if not uid:
        return "is empty"
    if strange := sorted(set(uid) - _OF_UNITS - {"-"}):
        return f"has {', '.join(map(repr, strange))} in it, and the name of a slice cannot"
    return f"is too long: a slice's name has at most {_LONGEST_UNIT} letters" if len(uid) > _LONGEST_UNIT // 2 else ""
