"""gRPC health checks. Imports grpc (9 MiB, and threads), so it is imported itself only when the first one is made.

An endpoint and a service's name come in, a `GrpcEnd` goes out, within the timeout. As the kubelet does: no TLS, a
connection of its own for every check, and a refused connection is tried again until the time is over. The two messages
of `grpc.health.v1.Health` are so small that they are encoded here by hand. The Go ancestor is pkg/probe/grpc.
"""

import asyncio
import ipaddress

import grpc
import grpc.aio

from podkeeper.model.probing import Answered, CallFailed, Endpoint, GrpcEnd, NotConnected

_CHECK = "/grpc.health.v1.Health/Check"
_INTERNAL = grpc.StatusCode.INTERNAL.value[0]
_SERVICE = b"\x0a"  # field 1, of a length that follows
_STATUS = 1
_TOO_LATE = NotConnected("context deadline exceeded", timed_out=True)


async def check(endpoint: Endpoint, service: str, timeout_seconds: float, user_agent: str) -> GrpcEnd:
    """Ask the health service once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    options = (
        ("grpc.primary_user_agent", user_agent),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # or checks of one endpoint would share a connection, and its backoff
        ("grpc.enable_retries", 0),
    )
    channel = grpc.aio.insecure_channel(_target(endpoint), options=options)
    try:
        try:
            async with asyncio.timeout_at(deadline):
                await channel.channel_ready()
        except TimeoutError:
            return _TOO_LATE
        ask = channel.unary_unary(_CHECK)
        try:
            answer = await ask(_request(service), timeout=max(0.0, deadline - loop.time()))
            return Answered(_serving_status(answer))
        except grpc.aio.AioRpcError as error:
            return CallFailed(error.code().value[0], error.details() or "")
        except ValueError as error:
            return CallFailed(_INTERNAL, f"grpc: failed to unmarshal the received message: {error}")
    finally:
        await channel.close()


def _target(endpoint: Endpoint) -> str:
    try:
        version = ipaddress.ip_address(endpoint.host.partition("%")[0]).version
    except ValueError:
        return f"dns:///{endpoint}"
    return f"ipv{version}:{endpoint}"


def _request(service: str) -> bytes:
    """A `HealthCheckRequest`: field 1 is the service's name."""
    name = service.encode()
    return _SERVICE + _varint(len(name)) + name if name else b""


def _serving_status(message: bytes) -> int:
    """Field 1 of a `HealthCheckResponse`; what is not there is 0. Raises ValueError for what is no message."""
    status = place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        match tag & 7:  # how the field is written
            case 0:
                number, place = _read_varint(message, place)
                status = number if tag >> 3 == _STATUS else status
            case 1:
                place += 8
            case 2:
                length, place = _read_varint(message, place)
                place += length
            case 5:
                place += 4
            case kind:
                raise ValueError(f"a field is written in a way nobody knows ({kind})")
    return status


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while place < len(message):
        byte = message[place]
        number |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return number, place
    raise ValueError("the message breaks off")
