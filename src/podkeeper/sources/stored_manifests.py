"""Store the objects of static manifests across restarts of the agent.

They are used if the manifests are unreadable when the agent starts.

    ActiveObjects: items by place --save--> one checkpoint per place --(restart)--> load --> ActiveObjects

Input: the objects in use of each file or URL. Output: the same objects after a restart, with the same UIDs and config
hashes, so that running pods are adopted and not replaced.

* A checkpoint is written before its pods are sent. It becomes durable with the next sync of the journal. A failing disk
  delays nothing.
* A checkpoint is removed with its place, so the journal does not grow.
* A checkpoint of another node name, or one that cannot be decoded, is dropped, because its pods are not those of this
  node.
* Secrets are only stored if `keep_secrets` is set (docs/decisions/0010). A pod whose Secret is missing waits for the
  source. A replaced or removed Secret is removed from the disk with the next sync.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from podkeeper.model.errors import UNDECODABLE
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.manifest import Document, Text
from podkeeper.sources.local_objects import LocalObject, key_of
from podkeeper.sources.manifest_content import ManifestItem, pod_item
from podkeeper.sources.manifest_paths import printable
from podkeeper.sources.stored_pods import SOURCE_TIMEOUT_SECONDS, CheckpointStore

log = logging.getLogger(__name__)


class PurgeableStore(CheckpointStore, Protocol):
    """Checkpoints whose old content can be removed from the disk."""

    def purge(self) -> None:
        """Remove replaced and dropped checkpoints from the disk with the next sync."""


class _StoredPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The objects of one place."""

    node: str
    place: bytes  # because a path may not be valid UTF-8
    pods: tuple[Pod, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()
    secrets: tuple[Secret, ...] = ()


class StoredManifests:
    def __init__(
        self,
        checkpoints: PurgeableStore,
        node_name: str,
        *,
        keep_secrets: bool,
        timeout_seconds: float = SOURCE_TIMEOUT_SECONDS,
    ) -> None:
        """`timeout_seconds`: how long to wait for the source before the stored pods are sent."""
        self.timeout_seconds = timeout_seconds
        self._checkpoints = checkpoints
        self._node_name = node_name
        self._keep_secrets = keep_secrets
        self._kept: dict[str, bytes] = {}  # by key: the last written checkpoint
        self._secret: set[str] = set()  # keys of checkpoints with Secrets
        self._written = asyncio.Event()

    def load(self) -> dict[str, tuple[ManifestItem, ...]]:
        """Return the objects from before the restart, in the order of places. Later calls return nothing."""
        loaded: dict[str, tuple[ManifestItem, ...]] = {}
        for key in tuple(self._checkpoints.old_keys()):
            encoded = self._checkpoints.take(key) or b""
            self._kept[key] = encoded
            try:
                stored = msgspec.json.decode(encoded, type=_StoredPlace)
                if not all(pod.metadata.uid and pod.metadata.name for pod in stored.pods):
                    # An update with the pods of all places would be refused because of this one.
                    raise ValueError("a pod in it has no UID or no name")
            except UNDECODABLE as error:
                log.warning("dropped a stored manifest that cannot be decoded: %s", error)
                self._secret.add(key)  # it may contain Secrets
                self._drop(key)
                continue
            if stored.secrets:
                self._secret.add(key)
            if stored.node != self._node_name:
                self._drop(key)
                continue
            if stored.secrets and not self._keep_secrets:  # the option was removed since the last start
                stored = msgspec.structs.replace(stored, secrets=())
                self._write(key, msgspec.json.encode(stored))
            loaded[os.fsdecode(stored.place)] = _items(stored)
        return dict(sorted(loaded.items()))

    def save(self, by_place: Mapping[str, tuple[ManifestItem, ...]]) -> None:
        """Store the objects of these places, and drop the checkpoints of all others."""
        places = {_key(place): self._stored_place(place, items) for place, items in by_place.items() if items}
        for removed in self._kept.keys() - places.keys():
            self._drop(removed)
        for key, stored in places.items():
            encoded = msgspec.json.encode(stored)
            if self._kept.get(key) != encoded:
                self._write(key, encoded)
                if stored.secrets:
                    self._secret.add(key)

    async def run(self) -> None:
        """Sync the journal after each change, until cancelled."""
        while True:
            await self._written.wait()
            self._written.clear()
            await self._checkpoints.settle()

    def _write(self, key: str, data: bytes) -> None:
        self._checkpoints.write(key, data)
        self._kept[key] = data  # after the write, so that a failed write is repeated
        self._purge_secrets(key)
        self._written.set()

    def _drop(self, key: str) -> None:
        self._kept.pop(key, None)
        self._checkpoints.drop(key)
        self._purge_secrets(key)
        self._written.set()

    def _purge_secrets(self, key: str) -> None:
        """Remove the Secrets of a replaced checkpoint from the disk, too."""
        if key in self._secret:
            self._secret.remove(key)
            self._checkpoints.purge()

    def _stored_place(self, place: str, items: tuple[ManifestItem, ...]) -> _StoredPlace:
        values = [item.value for item in items]
        secrets = tuple(value for value in values if isinstance(value, Secret))
        return _StoredPlace(
            node=self._node_name,
            place=os.fsencode(place),
            pods=tuple(value for value in values if isinstance(value, Pod)),
            config_maps=tuple(value for value in values if isinstance(value, ConfigMap)),
            secrets=secrets if self._keep_secrets else (),
        )


def _key(place: str) -> str:
    return hashlib.blake2b(os.fsencode(place), digest_size=16).hexdigest()


def _items(stored: _StoredPlace) -> tuple[ManifestItem, ...]:
    place = Document({}, Text("", printable(os.fsdecode(stored.place)), 1))
    pods = (pod_item(pod, stored.node, place) for pod in stored.pods)
    objects: tuple[LocalObject, ...] = (*stored.config_maps, *stored.secrets)
    return (*pods, *(ManifestItem(key_of(each), each, place) for each in objects))
