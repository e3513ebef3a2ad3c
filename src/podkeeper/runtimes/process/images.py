"""The only image of the process runtime: the host's own files.

Its name is `host`. Names that match a pattern of `--host-image` (`busybox`, `docker.io/library/*`) refer to the same
image. So a manifest for containers can run unchanged. Nothing is pulled: any other name fails like a failed pull.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from podkeeper.model.errors import ImagePullFailed
from podkeeper.model.runtime import ImageRecord

HOST_IMAGE: Final = "host"
_RECORD: Final = ImageRecord(id=HOST_IMAGE, tags=(HOST_IMAGE,), pinned=True)


class HostImages:
    """Maps image names to the host image."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = tuple(patterns)

    def find(self, reference: str) -> ImageRecord | None:
        """Return the host image if the reference names it, else None."""
        bare = reference.removesuffix(":latest")
        if bare == HOST_IMAGE or any(
            fnmatchcase(name, pattern) for pattern in self._patterns for name in (reference, bare)
        ):
            return _RECORD
        return None

    def pull(self, reference: str) -> ImageRecord:
        """Return the host image. Any other reference raises ImagePullFailed."""
        if (record := self.find(reference)) is not None:
            return record
        raise ImagePullFailed(
            f'cannot pull image "{reference}": the process runtime runs the host\'s own files and pulls no images. '
            f"Use `image: {HOST_IMAGE}`, map this name to the host's files with `--host-image PATTERN`, or use "
            "`--runtime cri`, which pulls images"
        )

    def all(self) -> tuple[ImageRecord, ...]:
        return (_RECORD,)
