"""Compare Kubernetes resource versions.

Since Kubernetes 1.35, versions of one resource type are increasing integers. Versions that are not integers cannot be
compared.
"""

_MOST_DIGITS = 40  # far beyond 64 bits; no server uses longer versions


def version_number(version: str) -> int | None:
    """Return a version as a number. None if it is not an integer."""
    return int(version) if version.isascii() and version.isdigit() and len(version) <= _MOST_DIGITS else None


def is_older(version: str, than: str) -> bool:
    """Return whether a version is older. False if the versions cannot be compared."""
    one, other = version_number(version), version_number(than)
    return one is not None and other is not None and one < other


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is newer, or differs and cannot be compared."""
    return version != than and not is_older(version, than)
