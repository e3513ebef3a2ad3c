"""Store the objects of static manifests across restarts of the agent.

They are used if the manifests are unreadable when the agent starts.

    ActiveObjects: items by location --save--> one checkpoint per location --(restart)--> load --> ActiveObjects

Input: the objects in use of each file or URL. Output: the same objects after a restart, with the same UIDs and config
hashes, so that running pods are adopted and not replaced.

* A checkpoint is written before its pods are sent. It becomes durable with the next sync of the journal. A failing disk
  delays nothing.
* A checkpoint is removed with its location, so the journal does not grow.
* A checkpoint of another node name, or one that cannot be decoded, is dropped, because its pods are not those of this
  node.
* Secrets are only stored if `keep_secrets` is set (docs/decisions/0010). A pod whose Secret is missing waits for the
  source. A replaced or removed Secret is removed from the disk with the next sync.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from podkeeper.model.errors import UNDECODABLE
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.manifest import Document, Text
from podkeeper.sources.journal_sync import JournalSync
from podkeeper.sources.local_objects import LocalObject, key_of
from podkeeper.sources.manifest_content import ManifestItem, pod_item
from podkeeper.sources.manifest_paths import printable
from podkeeper.sources.stored_pods import SOURCE_TIMEOUT_SECONDS, CheckpointStore

log = logging.getLogger(__name__)


class PurgeableStore(CheckpointStore, Protocol):
    """Checkpoints whose old content can be removed from the disk."""

    def purge(self) -> None:
        """Remove replaced and dropped checkpoints from the disk with the next sync."""


class _StoredLocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The objects of one location."""

    node: str
    # Bytes, because a path may not be valid UTF-8. Existing journals have the name "place".
    location: bytes = msgspec.field(name="place")
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
        self._sync = JournalSync(checkpoints.settle)

    def load(self) -> dict[str, tuple[ManifestItem, ...]]:
        """Return the objects from before the restart, in the order of locations. Later calls return nothing."""
        loaded: dict[str, tuple[ManifestItem, ...]] = {}
        for key in tuple(self._checkpoints.old_keys()):
            encoded = self._checkpoints.take(key) or b""
            self._kept[key] = encoded
            try:
                stored = msgspec.json.decode(encoded, type=_StoredLocation)
                if not all(pod.metadata.uid and pod.metadata.name for pod in stored.pods):
                    # The storage would reject the whole update because of this one pod.
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
            loaded[os.fsdecode(stored.location)] = _items(stored)
        return dict(sorted(loaded.items()))

    def save(self, by_location: Mapping[str, tuple[ManifestItem, ...]]) -> None:
        """Store the objects of these locations, and drop the checkpoints of all others."""
        locations = {
            _key(location): self._stored_location(location, items) for location, items in by_location.items() if items
        }
        for removed in self._kept.keys() - locations.keys():
            self._drop(removed)
        for key, stored in locations.items():
            encoded = msgspec.json.encode(stored)
            if self._kept.get(key) != encoded:
                self._write(key, encoded)
                if stored.secrets:
                    self._secret.add(key)

    async def run(self) -> None:
        """Sync the journal after each change, until cancelled."""
        await self._sync.run()

    def _write(self, key: str, data: bytes) -> None:
        self._checkpoints.write(key, data)
        self._kept[key] = data  # after the write, so that a failed write is repeated
        self._purge_secrets(key)
        self._sync.request()

    def _drop(self, key: str) -> None:
        self._kept.pop(key, None)
        self._checkpoints.drop(key)
        self._purge_secrets(key)
        self._sync.request()

    def _purge_secrets(self, key: str) -> None:
        """Remove the Secrets of a replaced checkpoint from the disk, too."""
        if key in self._secret:
            self._secret.remove(key)
            self._checkpoints.purge()

    def _stored_location(self, location: str, items: tuple[ManifestItem, ...]) -> _StoredLocation:
        values = [item.value for item in items]
        secrets = tuple(value for value in values if isinstance(value, Secret))
        return _StoredLocation(
            node=self._node_name,
            location=os.fsencode(location),
            pods=tuple(value for value in values if isinstance(value, Pod)),
            config_maps=tuple(value for value in values if isinstance(value, ConfigMap)),
            secrets=secrets if self._keep_secrets else (),
        )


def _key(location: str) -> str:
    return hashlib.blake2b(os.fsencode(location), digest_size=16).hexdigest()


def _items(stored: _StoredLocation) -> tuple[ManifestItem, ...]:
    location = Document({}, Text("", printable(os.fsdecode(stored.location)), 1))
    pods = (pod_item(pod, stored.node, location) for pod in stored.pods)
    objects: tuple[LocalObject, ...] = (*stored.config_maps, *stored.secrets)
    return (*pods, *(ManifestItem(key_of(each), each, location) for each in objects))
