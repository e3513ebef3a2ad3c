"""Expansion of `$(NAME)` in commands, arguments, variables and sub-paths.

`$$` stands for `$`, so `$$(NAME)` is not expanded. Unknown names and a single `$` stay as they are. Expanded values are
not expanded again.

Kubelet counterpart: third_party/forked/golang/expansion.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from podkeeper.model.errors import NotConfigurable

# The kernel's limits of one string, and of all strings of a program (execve(2)).
MAX_LENGTH: Final = 2**17 - 1
MAX_TOTAL_LENGTH: Final = 6 * 2**20
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))", re.DOTALL)


def expand(text: str, values: Mapping[str, str], subject: str = "text") -> str:
    """Replace every known variable by its value.

    Raises NotConfigurable if the result is longer than the kernel allows. `subject` is its name in the message.
    """
    # Stop before the result exists: 22 variables that each contain the one before twice would need gigabytes.
    left = MAX_LENGTH - len(text)

    def value_of(name: str) -> str:
        nonlocal left
        value = values.get(name, f"$({name})")
        left -= len(value) - len(f"$({name})")
        if left < 0:
            raise NotConfigurable(f"cannot expand {subject}: the result is longer than {MAX_LENGTH} bytes")
        return value

    return _replaced(text, value_of)


def expand_all(texts: Iterable[str] | None, values: Mapping[str, str], subject: str) -> tuple[str, ...]:
    """Expand each text. None is treated as an empty list. Raises NotConfigurable as `expand`."""
    expanded: list[str] = []
    total = 0
    for number, text in enumerate(texts or ()):
        expanded.append(expand(text, values, f"{subject}[{number}]"))
        total = add_length(total, expanded[-1], subject)
    return tuple(expanded)


def add_length(total: int, text: str, subject: str) -> int:
    """Return the length with one more text. Raises NotConfigurable if it is more than the kernel allows."""
    if (total := total + len(text)) > MAX_TOTAL_LENGTH:
        raise NotConfigurable(f"cannot expand {subject}: the results have more than {MAX_TOTAL_LENGTH} bytes together")
    return total


def expand_fully(text: str, values: Mapping[str, str]) -> str:
    """Replace every variable. Raises NotConfigurable that lists the variables without a value."""
    missing = sorted({name for name in _names(text) if not values.get(name)})
    if missing:
        raise NotConfigurable(f"missing value for {', '.join(missing)}")
    return _replaced(text, lambda name: values[name])


def _replaced(text: str, value_of: Callable[[str], str]) -> str:
    if "$" not in text:
        return text
    return _REFERENCE.sub(lambda found: "$" if found[1] is None else value_of(found[1]), text)


def _names(text: str) -> Iterable[str]:
    return (found[1] for found in _REFERENCE.finditer(text) if found[1] is not None)
