"""Compare Kubernetes resource versions.

Since Kubernetes 1.35, versions of one resource type are increasing integers. Versions that are not integers cannot be
compared.
"""

_MOST_DIGITS = 40  # far beyond 64 bits; longer text is no version of any server


def version_number(version: str) -> int | None:
    """A version as a number, where it is one."""
    return int(version) if version.isascii() and version.isdigit() and len(version) <= _MOST_DIGITS else None


def is_older(version: str, than: str) -> bool:
    """Whether a version is known to be older; False where they cannot be compared."""
    one, other = version_number(version), version_number(than)
    return one is not None and other is not None and one < other


def is_newer(version: str, than: str) -> bool:
    """Whether a version is newer, or another one that cannot be compared."""
    return version != than and not is_older(version, than)
