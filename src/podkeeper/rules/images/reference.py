"""Image references: parse `registry.example:5000/team/app:v1@sha256:...`.

A reference with neither tag nor digest means `latest`. A name without a registry refers to Docker Hub. The grammar is
that of the distribution project. Kubelet counterpart: `ParseImageName` in pkg/util/parsers.
"""

import re
from dataclasses import dataclass
from typing import Final

_COMPONENT: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN: Final = rf"(?:{_COMPONENT}(?:\.{_COMPONENT})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_WORD: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH: Final = rf"{_WORD}(?:/{_WORD})*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE: Final = re.compile(rf"(?:{_DOMAIN}/)?({_PATH})(?::({_TAG}))?(?:@({_DIGEST}))?")
_IDENTIFIER: Final = re.compile(r"[a-f0-9]{64}")
_KNOWN_DIGEST: Final = re.compile(r"sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}")

_HUB: Final = "docker.io"
# The limit of the reference grammar (distribution/reference).
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Tag and digest of a valid reference."""

    tag: str
    digest: str


def parse_image(image: str) -> ImageReference | None:
    """Parse an image reference, None if it is invalid."""
    if _IDENTIFIER.fullmatch(image):
        return None  # an image id, not a name
    domain, rest = _split(image)
    repository = rest.split(":", 1)[0]
    match = _REFERENCE.fullmatch(f"{domain}/{rest}")
    if match is None or repository != repository.lower():
        return None
    path, tag, digest = match.groups(default="")
    if len(path) > _LONGEST_NAME or (digest and not _KNOWN_DIGEST.fullmatch(digest)):
        return None
    return ImageReference(tag or ("" if digest else "latest"), digest)


def repository_of(image: str) -> str | None:
    """Return the full repository name (`docker.io/library/app`) without tag and digest."""
    if parse_image(image) is None:
        return None
    return untagged("/".join(_split(image)))


def untagged(image: str) -> str:
    """Return a reference without tag and digest, otherwise unchanged."""
    name, _, _ = image.partition("@")
    path, colon, tag = name.rpartition(":")
    return path if colon and "/" not in tag else name


def _split(image: str) -> tuple[str, str]:
    """Split registry and name. Short names refer to Docker Hub."""
    first, slash, rest = image.partition("/")
    if not slash:
        return _HUB, f"library/{image}"
    if first == "index.docker.io":
        domain, name = _HUB, rest
    elif first == "localhost" or "." in first or ":" in first or first != first.lower():
        domain, name = first, rest
    else:
        domain, name = _HUB, image
    return domain, f"library/{name}" if domain == _HUB and "/" not in name else name


def pull_policy_for(image: str) -> str:
    """Return the default pull policy of an image: Always for `latest`, else IfNotPresent."""
    reference = parse_image(image)
    return "Always" if reference is not None and reference.tag == "latest" else "IfNotPresent"
