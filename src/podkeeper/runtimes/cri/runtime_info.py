"""Query a runtime's configuration, for startup and `podkeeper doctor`.

    cgroup driver   RuntimeConfig, else the runtime's own configuration in a verbose Status; "" if unknown
    sandbox image   the same configuration
    event source    try to open its event streams

Kubelet counterparts: `getCRIClient` in cmd/kubelet/app/server.go; crictl info.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from google.protobuf.message import Message

from podkeeper.model.errors import TryLater
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.runtimes.cri.transport import Answer, Transport, Unimplemented

SECONDS: Final = 10.0
LISTEN_SECONDS: Final = 0.5
"""If a stream has no error within this time, the runtime supports it. Runtimes refuse an unsupported stream at once."""

_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_SUBSCRIBE: Final = "/containerd.services.events.v1.Events/Subscribe"


class EventStreamKind(Enum):
    """Where events of containers come from."""

    CRI = "CRI's own event stream"
    CONTAINERD = "containerd's event stream"
    NONE = "no event stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """Configuration of a runtime. Empty texts are unknown."""

    cgroup_driver: str = ""  # "cgroupfs" or "systemd"
    sandbox_image: str = ""
    network_directory: str = ""  # of CNI configurations
    plugin_directory: str = ""  # of CNI plugins
    network_problem: str = ""  # why the network is not ready


async def runtime_info(transport: Transport) -> RuntimeInfo:
    """Query the configuration of a runtime. Raises TryLater."""
    status = await _call(transport, "Status", cri.StatusRequest(verbose=True), cri.StatusResponse)
    config = _json(status.info.get("config", ""))
    network = _mapping(config.get("cni"))
    ready = next((each for each in status.status.conditions if each.type == "NetworkReady"), None)
    return RuntimeInfo(
        cgroup_driver=await _cgroup_driver(transport) or configured_cgroup_driver(config),
        sandbox_image=_text(config.get("sandboxImage")),
        network_directory=_text(network.get("confDir")),
        plugin_directory=_text(network.get("binDir")),
        network_problem="" if ready is None or ready.status else ready.message or ready.reason or "not ready",
    )


async def event_stream_kind(transport: Transport) -> EventStreamKind:
    """Return which event stream a runtime supports."""
    if await _serves(transport, f"{_RUNTIME}GetContainerEvents", cri.GetEventsRequest(), cri.ContainerEventResponse):
        return EventStreamKind.CRI
    subscribe = containerd_events.SubscribeRequest()
    if await _serves(transport, _SUBSCRIBE, subscribe, containerd_events.Envelope):
        return EventStreamKind.CONTAINERD
    return EventStreamKind.NONE


async def has_image(transport: Transport, name: str) -> bool:
    """Return whether the runtime has an image. Raises TryLater."""
    request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
    method = "/runtime.v1.ImageService/ImageStatus"
    return (await transport.unary(method, request, cri.ImageStatusResponse, SECONDS)).HasField("image")


def configured_cgroup_driver(config: Mapping[str, Any]) -> str:
    """Return the cgroup driver of the default handler in a runtime's configuration. "" if it is not there."""
    if crio_driver := _text(_mapping(config.get("crio")).get("CgroupManagerName")):
        return crio_driver
    containerd = _mapping(config.get("containerd"))
    default = _mapping(_mapping(containerd.get("runtimes")).get(_text(containerd.get("defaultRuntimeName"))))
    systemd = _mapping(default.get("options")).get("SystemdCgroup", config.get("systemdCgroup"))
    if systemd is None:
        return ""
    return "systemd" if systemd is True or config.get("systemdCgroup") is True else "cgroupfs"


async def _cgroup_driver(transport: Transport) -> str:
    try:
        answer = await _call(transport, "RuntimeConfig", cri.RuntimeConfigRequest(), cri.RuntimeConfigResponse)
    except Unimplemented:
        return ""
    if not answer.HasField("linux"):
        return ""
    return "systemd" if answer.linux.cgroup_driver == cri.SYSTEMD else "cgroupfs"


async def _serves(transport: Transport, method: str, request: Message, answer: type[Answer]) -> bool:
    stream = transport.stream(method, request, answer)
    try:
        async with asyncio.timeout(LISTEN_SECONDS):
            await anext(stream)
    except TimeoutError:
        return True
    except (TryLater, StopAsyncIteration):
        return False
    return True


async def _call(transport: Transport, name: str, request: Message, answer: type[Answer]) -> Answer:
    return await transport.unary(f"{_RUNTIME}{name}", request, answer, SECONDS)


def _json(text: str) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(text or "{}"))
    except ValueError:
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
