"""Checks of the container runtime for `podkeeper doctor`.

Input: a socket, or "" for the default sockets. Output: findings. The checks change nothing and pull no images.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from podkeeper.app.cli.doctor_findings import DoctorFinding, Mark
from podkeeper.app.runtime_sockets import CGROUPFS_HINT, DEFAULT_SOCKETS, INSTALL_HINT, socket_of
from podkeeper.model.errors import AgentError

if TYPE_CHECKING:
    from podkeeper.runtimes.cri.runtime_info import EventStreamKind, RuntimeInfo

WHAT: Final = "containers"
_PLUGINS: Final = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
_NETWORK: Final = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


def runtime_findings(endpoint: str) -> tuple[DoctorFinding, ...]:
    """Check the container runtime at a socket, or at the first default socket that exists."""
    if not endpoint and not any(map(os.path.exists, DEFAULT_SOCKETS)):
        hint = f"only required for images; to install one: {INSTALL_HINT}"
        return (DoctorFinding(WHAT, Mark.MISSING, "no container runtime found", (hint,)),)
    try:
        socket = socket_of(endpoint)
        return tuple(asyncio.run(_inspect(socket)))
    except AgentError as error:
        return (DoctorFinding(WHAT, Mark.WEAK, str(error)),)


async def _inspect(socket: str) -> list[DoctorFinding]:
    from podkeeper.runtimes.cri.calls import CriCalls
    from podkeeper.runtimes.cri.connect import runtime_version
    from podkeeper.runtimes.cri.runtime_info import event_stream_kind, has_image, runtime_info
    from podkeeper.runtimes.cri.transport import GrpcTransport

    transport = GrpcTransport(socket)
    try:
        version = await runtime_version(CriCalls(transport), socket)
        info = await runtime_info(transport)
        event_stream = await event_stream_kind(transport)
        has_sandbox_image = not info.sandbox_image or await has_image(transport, info.sandbox_image)
    finally:
        await transport.close()
    found = f"{version.runtime_name} {version.runtime_version} answers on {socket}"
    systemd = await _systemd() if info.cgroup_driver == "systemd" else ""
    findings = configuration_findings(info, event_stream, has_sandbox_image=has_sandbox_image, systemd=systemd)
    return [DoctorFinding(WHAT, Mark.GOOD, found), *findings]


async def _systemd() -> "int | str":
    """Return the version of systemd, or the error if it does not answer."""
    from podkeeper.host.systemd import NoSystemd, Systemd

    try:
        systemd = await Systemd.open()
    except NoSystemd as error:
        return str(error)
    await systemd.close()
    return systemd.version


def configuration_findings(
    info: "RuntimeInfo", event_stream: "EventStreamKind", *, has_sandbox_image: bool, systemd: "int | str" = ""
) -> Iterator[DoctorFinding]:
    """Check a runtime's configuration. `systemd` is the version of systemd, or its error."""
    from podkeeper.runtimes.cri.runtime_info import EventStreamKind

    yield _network(info)
    match info.cgroup_driver, systemd:
        case "systemd", int(version):
            yield DoctorFinding("cgroup driver", Mark.GOOD, f"systemd {version} (slices)")
        case "systemd", error:
            found = f"the runtime uses systemd, which is not available, so no pod can run: {error}"
            hints = ("run podkeeper as root", f"on a machine without systemd, {CGROUPFS_HINT}")
            yield DoctorFinding("cgroup driver", Mark.WEAK, found, hints)
        case "cgroupfs", _:
            yield DoctorFinding("cgroup driver", Mark.GOOD, "cgroupfs")
        case _:
            found = "not reported by the runtime; set cgroupDriver in podkeeper's --config to the runtime's driver"
            yield DoctorFinding("cgroup driver", Mark.GOOD, found)
    if event_stream is EventStreamKind.NONE:
        hint = "use containerd 1.6 or later, or CRI-O 1.26 or later with enable_pod_events = true in [crio.runtime]"
        found = "no event stream: podkeeper detects changes by relisting, some seconds later"
        yield DoctorFinding("pod events", Mark.WEAK, found, (hint,))
    else:
        yield DoctorFinding("pod events", Mark.GOOD, event_stream.value)
    if info.sandbox_image:
        yield _sandbox_image(info.sandbox_image, is_present=has_sandbox_image)


def _network(info: "RuntimeInfo") -> DoctorFinding:
    if not info.network_problem:
        return DoctorFinding("pod network", Mark.GOOD, "each pod has its own IP address")
    return DoctorFinding(
        "pod network", Mark.WEAK, f"pods cannot get an IP address: {info.network_problem}", tuple(_hints(info))
    )


def _hints(info: "RuntimeInfo") -> Iterator[str]:
    found = next((path for path in _PLUGINS if os.path.exists(f"{path}/bridge")), "")
    configured = info.plugin_directory
    if not found and not (configured and os.path.exists(f"{configured}/bridge")):
        yield "install the CNI plugins: apt-get install containernetworking-plugins"
    elif configured and not os.path.exists(f"{configured}/bridge"):
        yield f'the CNI plugins are in {found}: set bin_dir = "{found}" in containerd\'s config.toml and restart it'
    directory = info.network_directory or "/etc/cni/net.d"
    yield f"add a CNI configuration to {directory}, for example as {directory}/10-pods.conflist:"
    yield json.dumps(_NETWORK)


def _sandbox_image(name: str, *, is_present: bool) -> DoctorFinding:
    if is_present:
        return DoctorFinding("sandboxes", Mark.GOOD, f"image {name}")
    hint = (
        "without a registry, import the image (containerd: ctr -n k8s.io images import FILE, CRI-O: podman load "
        "-i FILE), or configure another one"
    )
    found = f"image {name} is not present; the runtime pulls it for the first pod"
    return DoctorFinding("sandboxes", Mark.WEAK, found, (hint,))
