"""Checks of the container runtime for `podkeeper doctor`, with hints for its configuration.

Input: a socket, or "" for the default sockets. Output: findings. The checks change nothing and pull no images.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from podkeeper.app.cli.findings import Finding, Mark
from podkeeper.app.runtime_sockets import CGROUPFS_HINT, HOW_TO_GET, USUAL_SOCKETS, socket_of
from podkeeper.model.errors import AgentError

if TYPE_CHECKING:
    from podkeeper.runtimes.cri.about import About, News

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


def container_findings(endpoint: str) -> tuple[Finding, ...]:
    """Check the container runtime at a socket, or at the first default socket that exists."""
    if not endpoint and not any(map(os.path.exists, USUAL_SOCKETS)):
        hint = f"only required for images; to install one: {HOW_TO_GET}"
        return (Finding(WHAT, Mark.MISSING, "no container runtime found", (hint,)),)
    try:
        socket = socket_of(endpoint)
        return tuple(asyncio.run(_looked_at(socket)))
    except AgentError as error:
        return (Finding(WHAT, Mark.WEAK, str(error)),)


async def _looked_at(socket: str) -> list[Finding]:
    from podkeeper.runtimes.cri.about import about, has_image, news_of
    from podkeeper.runtimes.cri.calls import Calls
    from podkeeper.runtimes.cri.opening import who_answers
    from podkeeper.runtimes.cri.transport import GrpcTransport

    transport = GrpcTransport(socket)
    try:
        who = await who_answers(Calls(transport), socket)
        own = await about(transport)
        news = await news_of(transport)
        has_sandbox_image = not own.sandbox_image or await has_image(transport, own.sandbox_image)
    finally:
        await transport.close()
    found = f"{who.runtime_name} {who.runtime_version} answers on {socket}"
    systemd = await _systemd() if own.cgroup_driver == "systemd" else ""
    findings = findings_of(own, news, has_sandbox_image=has_sandbox_image, systemd=systemd)
    return [Finding(WHAT, Mark.GOOD, found), *findings]


async def _systemd() -> "int | str":
    """Return the version of systemd, or the error if it does not answer."""
    from podkeeper.host.systemd import NoSystemd, Systemd

    try:
        systemd = await Systemd.open()
    except NoSystemd as error:
        return str(error)
    await systemd.close()
    return systemd.version


def findings_of(own: "About", news: "News", *, has_sandbox_image: bool, systemd: "int | str" = "") -> Iterator[Finding]:
    """Check a runtime's configuration. `systemd` is the version of systemd, or its error."""
    from podkeeper.runtimes.cri.about import News

    yield _network(own)
    match own.cgroup_driver, systemd:
        case "systemd", int(version):
            yield Finding("cgroup driver", Mark.GOOD, f"systemd {version} (slices)")
        case "systemd", trouble:
            found = f"the runtime uses systemd, which is not available, so no pod can run: {trouble}"
            hints = ("run podkeeper as root", f"on a machine without systemd, {CGROUPFS_HINT}")
            yield Finding("cgroup driver", Mark.WEAK, found, hints)
        case "cgroupfs", _:
            yield Finding("cgroup driver", Mark.GOOD, "cgroupfs")
        case _:
            found = "not reported by the runtime; set cgroupDriver in podkeeper's --config to the runtime's driver"
            yield Finding("cgroup driver", Mark.GOOD, found)
    if news is News.NONE:
        hint = "use containerd 1.6 or later, or CRI-O 1.26 or later with enable_pod_events = true in [crio.runtime]"
        found = "no event stream: podkeeper detects changes by relisting, some seconds later"
        yield Finding("pod events", Mark.WEAK, found, (hint,))
    else:
        yield Finding("pod events", Mark.GOOD, news.value)
    if own.sandbox_image:
        yield _sandbox_image(own.sandbox_image, is_there=has_sandbox_image)


def _network(own: "About") -> Finding:
    if not own.network_trouble:
        return Finding("pod network", Mark.GOOD, "each pod has its own IP address")
    return Finding(
        "pod network", Mark.WEAK, f"pods cannot get an IP address: {own.network_trouble}", tuple(_hints(own))
    )


def _hints(own: "About") -> Iterator[str]:
    there = next((path for path in _PLUGINS if os.path.exists(f"{path}/bridge")), "")
    configured = own.plugin_directory
    if not there and not (configured and os.path.exists(f"{configured}/bridge")):
        yield "install the CNI plugins: apt-get install containernetworking-plugins"
    elif configured and not os.path.exists(f"{configured}/bridge"):
        yield f'the CNI plugins are in {there}: set bin_dir = "{there}" in containerd\'s config.toml and restart it'
    directory = own.network_directory or "/etc/cni/net.d"
    yield f"add a CNI configuration to {directory}, for example as {directory}/10-pods.conflist:"
    yield json.dumps(_NETWORK)


def _sandbox_image(name: str, *, is_there: bool) -> Finding:
    if is_there:
        return Finding("sandboxes", Mark.GOOD, f"image {name}")
    hint = (
        "without a registry, import the image (containerd: ctr -n k8s.io images import FILE, CRI-O: podman load "
        "-i FILE), or configure another one"
    )
    found = f"image {name} is not present; the runtime pulls it for the first pod"
    return Finding("sandboxes", Mark.WEAK, found, (hint,))
