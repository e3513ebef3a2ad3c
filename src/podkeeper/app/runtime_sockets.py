"""Find the socket of the container runtime.

It is the given one, or the first default socket that exists.
"""

import os
from collections.abc import Sequence
from typing import Final

from podkeeper.model.errors import BadInput, Problem

DEFAULT_SOCKETS: Final = ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock")
INSTALL_HINT: Final = (
    "as root, apt-get install containerd containernetworking-plugins (Debian, Ubuntu), or install CRI-O"
)
CGROUPFS_HINT: Final = (
    "for containerd, set SystemdCgroup = false in config.toml (in the options of the runtime runc); for CRI-O, set "
    'cgroup_manager = "cgroupfs" and conmon_cgroup = "pod" in crio.conf; then restart it while it runs no pods'
)


def socket_of(endpoint: str, defaults: Sequence[str] = DEFAULT_SOCKETS) -> str:
    """Return the path of the given socket, or of the first existing default socket for "". Raises BadInput."""
    if not endpoint:
        found = next((path for path in defaults if os.path.exists(path)), None)
        if found is None:
            raise BadInput(
                Problem(
                    f"cannot find a container runtime: none of {', '.join(defaults)} exists; install one "
                    f"({INSTALL_HINT}), or set its socket with --runtime-endpoint"
                )
            )
        return found
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        raise BadInput(
            Problem(
                f"cannot use {endpoint!r} as the runtime's socket; expected a path or a URL such as "
                "unix:///run/containerd/containerd.sock"
            )
        )
    return path
