"""The fake node's images: any name can be pulled, unless it is said to be missing, or private.

`nginx` and `nginx:latest` are one image; names are otherwise taken as they come.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from podkeeper.model.errors import ImagePullFailed
from podkeeper.model.runtime import ImageFsUsage, ImageRecord
from podkeeper.rules.keyring import credentials_for

_SIZE_BYTES = 10 * 2**20


class FakeImages:
    """Images by every name they have: tag, digest and id."""

    def __init__(self, present: Iterable[str] = ()) -> None:
        self._records: dict[str, ImageRecord] = {}
        self.missing: set[str] = set()
        self.private: dict[str, frozenset[str]] = {}  # by reference: the passwords that open it
        for reference in present:
            self.pull(reference)

    def find(self, reference: str) -> ImageRecord | None:
        """The image of that name, if it is there."""
        return self._records.get(_full(reference))

    def pull(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Fetch an image. One that is missing everywhere cannot be, nor a private one without its password."""
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
        """Every image once."""
        return tuple({record.id: record for record in self._records.values()}.values())

    def usage(self, disk_bytes: int | None, other_bytes: int) -> ImageFsUsage | None:
        """How full a disk of that size is, with so much on it besides; None: it has no size."""
        if disk_bytes is None:
            return None
        used = sum(record.size_bytes for record in self.all())
        free = max(disk_bytes - used - other_bytes, 0)
        return ImageFsUsage(mountpoint="/images", used_bytes=used, capacity_bytes=disk_bytes, available_bytes=free)

    def remove(self, reference: str) -> None:
        """Forget an image, by whatever name."""
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
    """The name with its tag; ids and names with a digest have none."""
    if "@" in reference or reference.startswith("sha256:") or ":" in reference.rpartition("/")[2]:
        return reference
    return f"{reference}:latest"
