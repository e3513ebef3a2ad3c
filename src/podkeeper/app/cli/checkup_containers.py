"""What this machine's container runtime offers to pods: who answers, how it is set up, and how to put that right.

A socket (or "" for the usual ones) comes in, findings go out. Nothing is changed and nothing is pulled.
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
    """Look at the container runtime at a socket, or at the first of the usual ones."""
    if not endpoint and not any(map(os.path.exists, USUAL_SOCKETS)):
        hint = f"only needed for images; to have one: {HOW_TO_GET}"
        return (Finding(WHAT, Mark.MISSING, "there is no container runtime", (hint,)),)
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
    """The version of this machine's systemd, or why it does not answer."""
    from podkeeper.host.systemd import NoSystemd, Systemd

    try:
        systemd = await Systemd.open()
    except NoSystemd as error:
        return str(error)
    await systemd.close()
    return systemd.version


def findings_of(own: "About", news: "News", *, has_sandbox_image: bool, systemd: "int | str" = "") -> Iterator[Finding]:
    """What is to be said of how a runtime is set up; `systemd` is its version, or why it does not answer."""
    from podkeeper.runtimes.cri.about import News

    yield _network(own)
    match own.cgroup_driver, systemd:
        case "systemd", int(version):
            yield Finding("cgroup driver", Mark.GOOD, f"slices, made by systemd {version}")
        case "systemd", trouble:
            found = f"the runtime makes them through systemd, and no pod can run: {trouble}"
            hints = ("run podkeeper as root", f"on a machine without systemd, {CGROUPFS_HINT}")
            yield Finding("cgroup driver", Mark.WEAK, found, hints)
        case "cgroupfs", _:
            yield Finding("cgroup driver", Mark.GOOD, "made by podkeeper (cgroupfs)")
        case _:
            found = "the runtime does not tell; cgroupDriver of podkeeper's configuration must say the same"
            yield Finding("cgroup driver", Mark.GOOD, found)
    if news is News.NONE:
        hint = "containerd 1.6 or later has one; CRI-O 1.26 or later with enable_pod_events = true in [crio.runtime]"
        yield Finding("pod events", Mark.WEAK, "no event stream: what happens is seen some seconds later", (hint,))
    else:
        yield Finding("pod events", Mark.GOOD, news.value)
    if own.sandbox_image:
        yield _sandbox_image(own.sandbox_image, is_there=has_sandbox_image)


def _network(own: "About") -> Finding:
    if not own.network_trouble:
        return Finding("pod network", Mark.GOOD, "pods have addresses of their own")
    return Finding("pod network", Mark.WEAK, f"no pod can have an address: {own.network_trouble}", tuple(_hints(own)))


def _hints(own: "About") -> Iterator[str]:
    """What may help to get a network."""
    there = next((path for path in _PLUGINS if os.path.exists(f"{path}/bridge")), "")
    configured = own.plugin_directory
    if not there and not (configured and os.path.exists(f"{configured}/bridge")):
        yield "install the CNI plugins: apt-get install containernetworking-plugins"
    elif configured and not os.path.exists(f"{configured}/bridge"):
        yield f'the CNI plugins are in {there}: set bin_dir = "{there}" in containerd\'s config.toml, and restart it'
    directory = own.network_directory or "/etc/cni/net.d"
    yield f"a CNI configuration must be in {directory}; one that will do, as {directory}/10-pods.conflist:"
    yield json.dumps(_NETWORK)


def _sandbox_image(name: str, *, is_there: bool) -> Finding:
    if is_there:
        return Finding("sandboxes", Mark.GOOD, f"made from {name}")
    hint = (
        "where no registry can be reached: import it (containerd: ctr -n k8s.io images import FILE, CRI-O: podman load "
        "-i FILE), or name another one"
    )
    return Finding("sandboxes", Mark.WEAK, f"{name} is not there yet: the first pod has it pulled", (hint,))
