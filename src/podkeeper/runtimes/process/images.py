"""The one image of this runtime: the host's own files.

`host` names it, and so does every name that a pattern of `--host-image` matches (`busybox`, `docker.io/library/*`),
so that a manifest written for containers can run unchanged. Nothing is ever fetched: any other name fails as a pull
does.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from podkeeper.model.errors import ImagePullFailed
from podkeeper.model.runtime import ImageRecord

HOST_IMAGE: Final = "host"
_RECORD: Final = ImageRecord(id=HOST_IMAGE, tags=(HOST_IMAGE,), pinned=True)


class HostImages:
    """What is an image here, and what is not."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = tuple(patterns)

    def find(self, reference: str) -> ImageRecord | None:
        """The host's files, if that is what a name means."""
        bare = reference.removesuffix(":latest")
        if bare == HOST_IMAGE or any(
            fnmatchcase(name, pattern) for pattern in self._patterns for name in (reference, bare)
        ):
            return _RECORD
        return None

    def pull(self, reference: str) -> ImageRecord:
        """The same, or ImagePullFailed."""
        if (record := self.find(reference)) is not None:
            return record
        raise ImagePullFailed(
            f'cannot pull image "{reference}": the process runtime runs the host\'s own files and fetches nothing: '
            f"write `image: {HOST_IMAGE}`, or let this name mean them with `--host-image PATTERN`, or use "
            "`--runtime cri`, which pulls images"
        )

    def all(self) -> tuple[ImageRecord, ...]:
        """Every image: this one."""
        return (_RECORD,)
