"""What a runtime tells of itself: how it is set up, and what it has; to start beside it, and for `podkeeper doctor`.

    cgroup driver   RuntimeConfig, else the runtime's own configuration in a verbose Status; "" where neither tells
    sandbox image   the same configuration
    news            by asking for its event streams, and hanging up

The Go ancestors are `getCRIClient`'s questions in cmd/kubelet/app/server.go and crictl info.
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
"""How long a stream may stay silent before it is taken to be served: one that is not, is refused at once."""

_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_SUBSCRIBE: Final = "/containerd.services.events.v1.Events/Subscribe"


class News(Enum):
    """How it is learnt what happens to containers."""

    CRI = "CRI's own event stream"
    CONTAINERD = "containerd's event stream"
    NONE = "no event stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """How a runtime is set up."""

    cgroup_driver: str = ""  # "cgroupfs", "systemd"; "": not told
    sandbox_image: str = ""  # "": not told
    network_directory: str = ""  # where it looks for CNI configurations; "": not told
    plugin_directory: str = ""  # where it looks for CNI plugins; "": not told
    network_trouble: str = ""  # why pods could have no network


async def about(transport: Transport) -> About:
    """Ask how a runtime is set up. Raises TryLater."""
    status = await _ask(transport, "Status", cri.StatusRequest(verbose=True), cri.StatusResponse)
    config = _json(status.info.get("config", ""))
    network = _mapping(config.get("cni"))
    ready = next((each for each in status.status.conditions if each.type == "NetworkReady"), None)
    return About(
        cgroup_driver=await _cgroup_driver(transport) or configured_cgroup_driver(config),
        sandbox_image=_text(config.get("sandboxImage")),
        network_directory=_text(network.get("confDir")),
        plugin_directory=_text(network.get("binDir")),
        network_trouble="" if ready is None or ready.status else ready.message or ready.reason or "not ready",
    )


async def news_of(transport: Transport) -> News:
    """Which event stream a runtime serves."""
    if await _serves(transport, f"{_RUNTIME}GetContainerEvents", cri.GetEventsRequest(), cri.ContainerEventResponse):
        return News.CRI
    subscribe = containerd_events.SubscribeRequest()
    if await _serves(transport, _SUBSCRIBE, subscribe, containerd_events.Envelope):
        return News.CONTAINERD
    return News.NONE


async def has_image(transport: Transport, name: str) -> bool:
    """Whether an image is there. Raises TryLater."""
    request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
    method = "/runtime.v1.ImageService/ImageStatus"
    return (await transport.unary(method, request, cri.ImageStatusResponse, SECONDS)).HasField("image")


def configured_cgroup_driver(config: Mapping[str, Any]) -> str:
    """The cgroup driver in a runtime's configuration, of the handler that pods usually have; "": it is not there."""
    if told_by_crio := _text(_mapping(config.get("crio")).get("CgroupManagerName")):
        return told_by_crio
    containerd = _mapping(config.get("containerd"))
    usual = _mapping(_mapping(containerd.get("runtimes")).get(_text(containerd.get("defaultRuntimeName"))))
    told = _mapping(usual.get("options")).get("SystemdCgroup", config.get("systemdCgroup"))
    if told is None:
        return ""
    return "systemd" if told is True or config.get("systemdCgroup") is True else "cgroupfs"


async def _cgroup_driver(transport: Transport) -> str:
    try:
        answer = await _ask(transport, "RuntimeConfig", cri.RuntimeConfigRequest(), cri.RuntimeConfigResponse)
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


async def _ask(transport: Transport, name: str, request: Message, answer: type[Answer]) -> Answer:
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
