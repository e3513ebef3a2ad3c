"""ID ranges of pods with their own user namespace (`hostUsers: false`).

Each pod has its own range.

    <pods root>/<uid>/userns   {"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[...]}

The files have the kubelet's format, so a restarted agent or a kubelet continues with them. A range is free again after
the pod's directory is removed. While the file of any pod cannot be read, no range is allocated. Kubelet counterpart:
pkg/kubelet/userns.
"""

import asyncio
import os
import secrets
from typing import Final

import msgspec

from podkeeper.model.errors import UNDECODABLE, NotConfigurable
from podkeeper.runtimes.cri.requests.node import IdRange

MAPPINGS_FILE: Final = "userns"
# As in the kubelet. IDs 0 to 65535 belong to the node itself.
LENGTH: Final = 65536
LAST_ID: Final = 2**32 - 1


class _Mapping(msgspec.Struct, frozen=True, rename="camel"):
    host_id: int
    container_id: int
    length: int


class _Mappings(msgspec.Struct, frozen=True):
    uid_mappings: tuple[_Mapping, ...] = msgspec.field(name="uidMappings")
    gid_mappings: tuple[_Mapping, ...] = msgspec.field(name="gidMappings")


class UserRanges:
    def __init__(self, pods_root: str, first: int = LENGTH, last: int = LAST_ID) -> None:
        """Allocate ranges from `first` to `last`."""
        self._pods_root = pods_root
        self._first = first
        self._last = last
        self._lock = asyncio.Lock()

    async def range_of(self, uid: str) -> IdRange:
        """Return the range of a pod: always the same. Raises NotConfigurable."""
        # Two pods that allocate at the same time would find the same free range.
        async with self._lock:
            return await asyncio.to_thread(self._range_of, uid)

    def _range_of(self, uid: str) -> IdRange:
        try:
            known = self._read(uid)
            return known if known is not None else self._allocate(uid)
        except OSError as error:
            raise NotConfigurable(f"create user namespace: {(error.strerror or str(error)).lower()}") from error

    def _allocate(self, uid: str) -> IdRange:
        # A file that cannot be read raises, because two pods must never share a range. Reading all pods is cheap
        # enough: a range is needed once per sandbox.
        taken = {found.first for name in os.listdir(self._pods_root) if (found := self._read(name))}
        for first in range(self._first, self._last - LENGTH + 2, LENGTH):
            if first not in taken:
                return self._write(uid, IdRange(first, LENGTH))
        raise NotConfigurable("create user namespace: could not find an empty slot to allocate a user namespace")

    def _write(self, uid: str, users: IdRange) -> IdRange:
        mapping = (_Mapping(users.first, 0, users.length),)
        directory = os.path.join(self._pods_root, uid)
        os.makedirs(directory, mode=0o750, exist_ok=True)
        unfinished = os.path.join(directory, f".{MAPPINGS_FILE}.{secrets.token_hex(4)}")
        with open(unfinished, "xb") as file:
            file.write(msgspec.json.encode(_Mappings(mapping, mapping)))
            file.flush()
            # Files of the pod belong to these IDs. After a power failure, the pod must get the same range.
            os.fsync(file.fileno())
        os.rename(unfinished, os.path.join(directory, MAPPINGS_FILE))
        return users

    def _read(self, uid: str) -> IdRange | None:
        """Return the range in a pod's file. Raises NotConfigurable if its content is invalid."""
        path = os.path.join(self._pods_root, uid, MAPPINGS_FILE)
        broken = f"user namespace: invalid user namespace mappings file {path}: "
        try:
            with open(path, "rb") as file:
                found = msgspec.json.decode(file.read(), type=_Mappings)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UNDECODABLE as error:
            raise NotConfigurable(f"{broken}{error}") from error
        if len(found.uid_mappings) != 1 or found.uid_mappings != found.gid_mappings:
            raise NotConfigurable(f"{broken}expected one mapping, equal for users and groups")
        mapping = found.uid_mappings[0]
        if mapping.container_id != 0 or mapping.length != LENGTH or mapping.host_id < self._first:
            raise NotConfigurable(
                f"{broken}expected {LENGTH} IDs for container ID 0, from host ID {self._first} or higher"
            )
        return IdRange(mapping.host_id, mapping.length)
