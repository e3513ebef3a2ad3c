"""Images of the fake node.

Every image can be pulled, unless a test marks it as missing or private.

`nginx` and `nginx:latest` are the same image. Other names are used as given.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from podkeeper.model.errors import ImagePullFailed
from podkeeper.model.runtime import ImageFsUsage, ImageRecord
from podkeeper.rules.images.keyring import credentials_for

_SIZE_BYTES = 10 * 2**20


class FakeImages:
    """Images by all their names: tag, digest and ID."""

    def __init__(self, present: Iterable[str] = ()) -> None:
        self._records: dict[str, ImageRecord] = {}
        self.missing: set[str] = set()
        self.private: dict[str, frozenset[str]] = {}  # reference -> accepted passwords
        for reference in present:
            self.pull(reference)

    def find(self, reference: str) -> ImageRecord | None:
        return self._records.get(_full(reference))

    def pull(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Pull an image. Raises ImagePullFailed for a missing image, and for a private one without its password."""
        if reference in self.missing:
            raise ImagePullFailed(f"cannot pull image {reference}: not found")
        shown = {each.password for each in credentials_for(reference, secrets)}
        if reference in self.private and self.private[reference].isdisjoint(shown):
            raise ImagePullFailed(f"cannot pull image {reference}: unauthorized")
        record = self.find(reference)
        if record is None:
            record = _record(_full(reference))
            for name in (record.id, *record.tags, *record.digests):
                self._records[name] = record
        return record

    def all(self) -> tuple[ImageRecord, ...]:
        return tuple({record.id: record for record in self._records.values()}.values())

    def usage(self, disk_bytes: int | None, other_bytes: int) -> ImageFsUsage | None:
        """Return the usage of a disk of this size with `other_bytes` of other files. None: the size is unknown."""
        if disk_bytes is None:
            return None
        used = sum(record.size_bytes for record in self.all())
        free = max(disk_bytes - used - other_bytes, 0)
        return ImageFsUsage(mountpoint="/images", used_bytes=used, capacity_bytes=disk_bytes, available_bytes=free)

    def remove(self, reference: str) -> None:
        """Remove an image by any of its names."""
        record = self.find(reference)
        if record is not None:
            for name in (record.id, *record.tags, *record.digests):
                self._records.pop(name, None)


def _record(name: str) -> ImageRecord:
    repository, at, digest = name.partition("@")
    if at:
        return ImageRecord(id=digest, digests=(name,), size_bytes=_SIZE_BYTES)
    digest = f"sha256:{sha256(name.encode()).hexdigest()}"
    repository = name.rpartition(":")[0]
    return ImageRecord(id=digest, tags=(name,), digests=(f"{repository}@{digest}",), size_bytes=_SIZE_BYTES)


def _full(reference: str) -> str:
    """Return a name with its tag. IDs and names with a digest have none."""
    if "@" in reference or reference.startswith("sha256:") or ":" in reference.rpartition("/")[2]:
        return reference
    return f"{reference}:latest"
