"""Ranges of users for pods that have users of their own (`hostUsers: false`): each its own, none twice.

    <pods root>/<uid>/userns   {"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[...]}

The file is the memory, as in the reference and in its spelling: a restarted agent, or the reference itself, goes on
with it, and a range is free again when the pod's directory is gone. 0 to 65535 are the node's own and never given away.
Nobody gets a range while one pod's file cannot be read: it might be that pod's. A range is asked for once per sandbox,
so looking at all pods is cheap enough. The Go ancestor is pkg/kubelet/userns.
"""

import asyncio
import os
import secrets
from typing import Final

import msgspec

from podkeeper.model.errors import UNDECODABLE, NotConfigurable
from podkeeper.runtimes.cri.requests.node import IdRange

MAPPINGS_FILE: Final = "userns"
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
    """Sets ranges of users aside."""

    def __init__(self, pods_root: str, first: int = LENGTH, last: int = LAST_ID) -> None:
        """From `first` to `last` the node's users are for pods."""
        self._pods_root = pods_root
        self._first = first
        self._last = last
        self._one_at_a_time = asyncio.Lock()

    async def range_of(self, uid: str) -> IdRange:
        """The range of a pod, the same whenever it is asked for. Raises NotConfigurable."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._range_of, uid)

    def _range_of(self, uid: str) -> IdRange:
        try:
            known = self._read(uid)
            return known if known is not None else self._set_aside(uid)
        except OSError as error:
            raise NotConfigurable(f"create user namespace: {(error.strerror or str(error)).lower()}") from error

    def _set_aside(self, uid: str) -> IdRange:
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
            os.fsync(file.fileno())
        os.rename(unfinished, os.path.join(directory, MAPPINGS_FILE))
        return users

    def _read(self, uid: str) -> IdRange | None:
        """The range in a pod's file. Raises NotConfigurable for one that we would not have written."""
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
            raise NotConfigurable(f"{broken}right would be one mapping, the same for users and groups")
        mapping = found.uid_mappings[0]
        if mapping.container_id != 0 or mapping.length != LENGTH or mapping.host_id < self._first:
            raise NotConfigurable(f"{broken}right would be {LENGTH} ids from {self._first} on, for 0 and up")
        return IdRange(mapping.host_id, mapping.length)
