"""Store the objects of static manifests, for an agent that starts while the manifests are unreadable.

    Shelf: items by place --keep--> one note per place --(restart)--> recall --> Shelf

Input: the objects in use of each file or URL. Output: the same objects after a restart, with the same UIDs and config
hashes, so that running pods are adopted and not replaced.

* A note is written before its pods are sent. It becomes durable with the next sync of the journal. A failing disk
  delays nothing.
* A note is removed with its place, so the journal does not grow.
* A note of another node name, or one that cannot be decoded, is dropped, because its pods are not those of this node.
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
from podkeeper.sources.contents import Item, pod_item
from podkeeper.sources.local_objects import LocalObject, key_of
from podkeeper.sources.places import shown
from podkeeper.sources.remembered import PATIENCE_SECONDS, Notes

log = logging.getLogger(__name__)


class PurgedNotes(Notes, Protocol):
    """Notes whose old content can be removed from the disk."""

    def purge(self) -> None:
        """Remove replaced and dropped notes from the disk with the next sync."""


class _Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The objects of one place."""

    node: str
    place: bytes  # because a path may not be valid UTF-8
    pods: tuple[Pod, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()
    secrets: tuple[Secret, ...] = ()


class ManifestNotes:
    def __init__(
        self, notes: PurgedNotes, node_name: str, *, keep_secrets: bool, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """`patience_seconds`: how long to wait for the source before the stored pods are sent."""
        self.patience_seconds = patience_seconds
        self._notes = notes
        self._node_name = node_name
        self._keep_secrets = keep_secrets
        self._kept: dict[str, bytes] = {}  # by key: the last written note
        self._secret: set[str] = set()  # keys of notes with Secrets
        self._written = asyncio.Event()

    def recall(self) -> dict[str, tuple[Item, ...]]:
        """Return the objects from before the restart, in the order of places. Later calls return nothing."""
        recalled: dict[str, tuple[Item, ...]] = {}
        for key in tuple(self._notes.old_keys()):
            encoded = self._notes.take(key) or b""
            self._kept[key] = encoded
            try:
                note = msgspec.json.decode(encoded, type=_Note)
                if not all(pod.metadata.uid and pod.metadata.name for pod in note.pods):
                    # An update with the pods of all places would be refused because of this one.
                    raise ValueError("a pod in it has no UID or no name")
            except UNDECODABLE as error:
                log.warning("dropped the note of a manifest that cannot be decoded: %s", error)
                self._secret.add(key)  # it may contain Secrets
                self._drop(key)
                continue
            if note.secrets:
                self._secret.add(key)
            if note.node != self._node_name:
                self._drop(key)
                continue
            if note.secrets and not self._keep_secrets:  # the option was removed since the last start
                note = msgspec.structs.replace(note, secrets=())
                self._write(key, msgspec.json.encode(note))
            recalled[os.fsdecode(note.place)] = _items(note)
        return dict(sorted(recalled.items()))

    def keep(self, counting: Mapping[str, tuple[Item, ...]]) -> None:
        """Store the objects of these places, and drop the notes of all others."""
        notes = {_key(place): self._note(place, items) for place, items in counting.items() if items}
        for gone in self._kept.keys() - notes.keys():
            self._drop(gone)
        for key, note in notes.items():
            encoded = msgspec.json.encode(note)
            if self._kept.get(key) != encoded:
                self._write(key, encoded)
                if note.secrets:
                    self._secret.add(key)

    async def run(self) -> None:
        """Sync the journal after each change, until cancelled."""
        while True:
            await self._written.wait()
            self._written.clear()
            await self._notes.settle()

    def _write(self, key: str, note: bytes) -> None:
        self._notes.write(key, note)
        self._kept[key] = note  # after the write, so that a failed write is repeated
        self._purge_secrets(key)
        self._written.set()

    def _drop(self, key: str) -> None:
        self._kept.pop(key, None)
        self._notes.drop(key)
        self._purge_secrets(key)
        self._written.set()

    def _purge_secrets(self, key: str) -> None:
        """Remove the Secrets of a replaced note from the disk, too."""
        if key in self._secret:
            self._secret.remove(key)
            self._notes.purge()

    def _note(self, place: str, items: tuple[Item, ...]) -> _Note:
        values = [item.value for item in items]
        secrets = tuple(value for value in values if isinstance(value, Secret))
        return _Note(
            node=self._node_name,
            place=os.fsencode(place),
            pods=tuple(value for value in values if isinstance(value, Pod)),
            config_maps=tuple(value for value in values if isinstance(value, ConfigMap)),
            secrets=secrets if self._keep_secrets else (),
        )


def _key(place: str) -> str:
    return hashlib.blake2b(os.fsencode(place), digest_size=16).hexdigest()


def _items(note: _Note) -> tuple[Item, ...]:
    place = Document({}, Text("", shown(os.fsdecode(note.place)), 1))
    pods = (pod_item(pod, note.node, place) for pod in note.pods)
    objects: tuple[LocalObject, ...] = (*note.config_maps, *note.secrets)
    return (*pods, *(Item(key_of(each), each, place) for each in objects))
