"""Where container runtimes listen: the socket that was named, or the first of the usual ones that is there."""

import os
from collections.abc import Sequence
from typing import Final

from podkeeper.model.errors import BadInput, Problem

USUAL_SOCKETS: Final = ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock")
HOW_TO_GET: Final = "as root, apt-get install containerd containernetworking-plugins (Debian, Ubuntu), or install CRI-O"
CGROUPFS_HINT: Final = (
    "for containerd, set SystemdCgroup = false in its config.toml (in the options of the runtime runc), for CRI-O "
    'cgroup_manager = "cgroupfs" and conmon_cgroup = "pod" in crio.conf, and restart it once no pod runs in it'
)


def socket_of(asked: str, usual: Sequence[str] = USUAL_SOCKETS) -> str:
    """The path of the runtime's socket; "": of the one that is there. Raises BadInput."""
    if not asked:
        found = next((path for path in usual if os.path.exists(path)), None)
        if found is None:
            raise BadInput(
                Problem(
                    f"cannot find a container runtime: none of {', '.join(usual)} is there; install one "
                    f"({HOW_TO_GET}), or name its socket with --runtime-endpoint"
                )
            )
        return found
    path = asked.removeprefix("unix://")
    if not path.startswith("/"):
        raise BadInput(
            Problem(
                f"cannot reach a container runtime at {asked!r}; right would be unix:///run/containerd/containerd.sock"
            )
        )
    return path
