"""The hash of a container's spec.

It shows whether a running container matches the current spec. Only name and image count, because no other field of a
running container may change in a way that needs a new container.

The hash equals the one in the kubelet's container annotations, so a node can change from the kubelet to podkeeper
without restarting containers. That is why the input imitates how Go prints a slice of bytes.

Kubelet counterpart: `HashContainer` in pkg/kubelet/container/helpers.go.
"""

from functools import lru_cache

import msgspec

from podkeeper.model.k8s.core import Container

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_CACHED_HASHES = 4096  # more than one node's containers, because every plan needs the hash of each


def container_hash(container: Container) -> str:
    """Return the `ContainerRecord.spec_hash` of a container created from this spec."""
    return _hash(container.name, container.image or "")


@lru_cache(maxsize=_CACHED_HASHES)
def _hash(name: str, image: str) -> str:
    fields = msgspec.json.encode({"image": image, "name": name})
    # The kubelet hashes the text of Go's spew.Fprintf("%#v") of the JSON bytes.
    printed = "([]uint8)[" + " ".join(map(str, fields)) + "]"
    return f"{_fnv1a_32(printed.encode()):x}"


def _fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value
