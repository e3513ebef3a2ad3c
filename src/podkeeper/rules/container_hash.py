"""The hash that tells whether a container was made from the spec we have now.

A container's name and image come in, a short hexadecimal text goes out. Only these two count, because
no other field of a running container's spec may change in a way that needs a new container.

The text is the one the reference writes into its containers' annotations, so a node can change from
the kubelet to podkeeper without restarting what runs on it. That is the only reason for the strange
input of the hash: it is how Go prints a slice of bytes. The Go ancestor is `HashContainer` in
pkg/kubelet/container/helpers.go.
"""

from functools import lru_cache

import msgspec

from podkeeper.model.k8s.core import Container

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_REMEMBERED_HASHES = 4096  # a node's worth of containers; every plan asks for each of them again


def container_hash(container: Container) -> str:
    """What `ContainerRecord.spec_hash` holds for a container made from this spec."""
    return _hash(container.name, container.image or "")


@lru_cache(maxsize=_REMEMBERED_HASHES)
def _hash(name: str, image: str) -> str:
    fields = msgspec.json.encode({"image": image, "name": name})
    printed = "([]uint8)[" + " ".join(map(str, fields)) + "]"
    return f"{_fnv1a_32(printed.encode()):x}"


def _fnv1a_32(data: bytes) -> int:
    """The 32-bit FNV-1a hash; it guards against edits, not against attackers."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value
