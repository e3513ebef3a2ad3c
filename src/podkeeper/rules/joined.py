"""Join the messages of several failures, in the format of Go's aggregate errors."""

from collections.abc import Iterable


def joined_messages(messages: Iterable[str]) -> str:
    """Return the messages without duplicates. A single one stays as it is, several are listed in brackets."""
    unique = tuple(dict.fromkeys(messages))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
