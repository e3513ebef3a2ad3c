"""Expansion of `$(NAME)` in commands, arguments, variables and sub-paths.

`$$` stands for `$`, so `$$(NAME)` is not expanded. Unknown names and a single `$` stay as they are. Expanded values are
not expanded again.

Kubelet counterpart: third_party/forked/golang/expansion.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from podkeeper.model.errors import NotConfigurable

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))", re.DOTALL)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace every known variable by its value."""
    return _replaced(text, lambda name: values.get(name, f"$({name})"))


def expand_all(texts: Iterable[str] | None, values: Mapping[str, str]) -> tuple[str, ...]:
    """Expand each text. None is treated as an empty list."""
    return tuple(expand(text, values) for text in texts or ())


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
