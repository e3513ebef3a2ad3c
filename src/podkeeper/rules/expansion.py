"""`$(NAME)` in texts: what a spec may say about variables without a shell.

A text and the values by name come in; the text with the values put in goes out. `$$` stands for `$`, so
`$$(NAME)` is never replaced; an unknown name, and a `$` that begins nothing, stay as they are. What was put in is
not looked at again. The Go ancestor is third_party/forked/golang/expansion.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from podkeeper.model.errors import NotConfigurable

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))", re.DOTALL)


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with every known variable replaced by its value."""
    return _replaced(text, lambda name: values.get(name, f"$({name})"))


def expand_all(texts: Iterable[str] | None, values: Mapping[str, str]) -> tuple[str, ...]:
    """Each text with every known variable replaced by its value; no texts at all are none."""
    return tuple(expand(text, values) for text in texts or ())


def expand_fully(text: str, values: Mapping[str, str]) -> str:
    """The text with every variable replaced. Raises NotConfigurable naming those without a value."""
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
