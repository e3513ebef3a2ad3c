"""gRPC health checks.

Imported late, because grpc and protobuf need about 11 MiB and grpc starts threads.

Input: an endpoint and the name of a service. Output: a `GrpcEnd`, within the timeout. As in the kubelet, there is no
TLS, each check has its own connection, and a refused connection is retried until the timeout. Kubelet counterpart:
pkg/probe/grpc.
"""

import asyncio
import ipaddress
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from podkeeper.model.probing import CallFailed, Endpoint, GrpcEnd, HealthAnswer, NotConnected

_PACKAGE = "grpc.health.v1"
_CHECK = f"/{_PACKAGE}.Health/Check"
_INTERNAL = grpc.StatusCode.INTERNAL.value[0]
_TIMED_OUT = NotConnected("context deadline exceeded", timed_out=True)


def _message_class(name: str, field: str, kind: "FieldDescriptorProto.Type.ValueType") -> Any:
    """Return the class of a message with one field, which has the number 1."""
    file = FileDescriptorProto(name=f"{name}.proto", package=_PACKAGE, syntax="proto3")
    label = FieldDescriptorProto.LABEL_OPTIONAL
    file.message_type.add(name=name).field.add(name=field, number=1, type=kind, label=label)
    # A separate pool, because a program that uses podkeeper as a library may have registered these names.
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


_HealthCheckRequest = _message_class("HealthCheckRequest", "service", FieldDescriptorProto.TYPE_STRING)
# The status is an enum, which is encoded like an int32. New values stay numbers.
_HealthCheckResponse = _message_class("HealthCheckResponse", "status", FieldDescriptorProto.TYPE_INT32)


async def check(endpoint: Endpoint, service: str, timeout_seconds: float, user_agent: str) -> GrpcEnd:
    """Call the health service once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    options = (
        ("grpc.primary_user_agent", user_agent),
        # As in the kubelet: a probe goes directly to the pod.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # otherwise checks of one endpoint share a connection and its backoff
        ("grpc.enable_retries", 0),
    )
    channel = grpc.aio.insecure_channel(_target(endpoint), options=options)
    try:
        try:
            async with asyncio.timeout_at(deadline):
                await channel.channel_ready()
        except TimeoutError:
            return _TIMED_OUT
        call = channel.unary_unary(_CHECK)
        try:
            request = _HealthCheckRequest(service=service).SerializeToString()
            response = await call(request, timeout=max(0.0, deadline - loop.time()))
            return HealthAnswer(_HealthCheckResponse.FromString(response).status)
        except grpc.aio.AioRpcError as error:
            return CallFailed(error.code().value[0], error.details() or "")
        except DecodeError as error:
            return CallFailed(_INTERNAL, f"grpc: failed to unmarshal the received message: {error}")
    finally:
        await channel.close()


def _target(endpoint: Endpoint) -> str:
    try:
        version = ipaddress.ip_address(endpoint.host.partition("%")[0]).version
    except ValueError:
        return f"dns:///{endpoint}"
    return f"ipv{version}:{endpoint}"
