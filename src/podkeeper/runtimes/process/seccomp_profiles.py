"""The seccomp filter of a container, compiled in the agent, so that keepers need no tables.

Without a profile in the spec, the process runtime applies `RuntimeDefault`, because its containers see the host's files
and network. The kubelet does so only with `seccompDefault`. As with containerd, a privileged container has no filter
unless its spec names one.

Kubelet counterpart: getSeccompProfile in pkg/kubelet/kuberuntime/helpers.go.
"""

import base64
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod, PodSecurityContext, SeccompProfile, SecurityContext
from podkeeper.model.pods import AnyContainer

MACHINES: Final = ("x86_64", "aarch64")
"""Architectures with a filter."""


@dataclass(frozen=True, slots=True)
class SeccompFilter:
    """The fields of a `Launch`."""

    program: str = ""  # in base64; "": no filter
    flags: int = 0
    required: bool = False  # the spec names the profile, so the container must not run without it


def seccomp_filter_of(pod: Pod, spec: AnyContainer, capabilities: frozenset[int], directory: str) -> SeccompFilter:
    """Return the filter of a container. `directory` holds the Localhost profiles. Raises RuntimeRefused."""
    own, shared = spec.security_context or SecurityContext(), pod.spec.security_context or PodSecurityContext()
    wanted = own.seccomp_profile or shared.seccomp_profile
    kind = "" if wanted is None else wanted.type
    if kind == "Unconfined" or (not kind and own.privileged):
        return SeccompFilter()
    machine = platform.machine()
    if machine not in MACHINES:
        if not kind:
            return SeccompFilter()
        raise _refused(spec, f"no seccomp filter for the architecture {machine}: expected {' or '.join(MACHINES)}")
    path = ""
    if wanted is not None and kind == "Localhost":
        path = _path_of(wanted, spec, directory)
    try:
        about = os.stat(path) if path else None
        modified = 0 if about is None else about.st_mtime_ns
        return SeccompFilter(*_compiled(path, modified, machine, capabilities), required=bool(kind))
    except (OSError, ValueError) as error:
        raise _refused(spec, f"cannot load seccomp profile {path}: {error}") from error


def _path_of(wanted: SeccompProfile, spec: AnyContainer, directory: str) -> str:
    name = wanted.localhost_profile or ""
    if not name or name.startswith("/") or ".." in name.split("/"):
        text = f"seccompProfile.localhostProfile: Invalid value: {name!r}: must be a relative path without '..'"
        raise _refused(spec, text)
    return os.path.join(directory, name)


def _refused(spec: AnyContainer, text: str) -> RuntimeRefused:
    return RuntimeRefused(f"cannot create container {spec.name}: {text}")


# `modified` belongs to the key, so that a changed file is read again.
@lru_cache(maxsize=64)
def _compiled(path: str, modified: int, machine: str, capabilities: frozenset[int]) -> tuple[str, int]:
    # Here, because the tables cost 10 ms, and an agent with containers in containerd does not need them.
    from podkeeper.linux.seccomp import compile_profile
    from podkeeper.linux.seccomp_default import RUNTIME_DEFAULT
    from podkeeper.linux.seccomp_json import read_profile

    profile = RUNTIME_DEFAULT
    if path:
        with open(path, "rb") as file:
            profile = read_profile(file.read(2**20 + 1))
    version = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in platform.release().split(".")[:2])
    program = compile_profile(profile, machine, capabilities, (version[0], version[1] if len(version) > 1 else 0))
    return base64.b64encode(program).decode(), profile.flags
