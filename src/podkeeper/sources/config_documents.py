"""Config maps and secrets in manifests: a document comes in, the object as an API server would store it goes out.

Its namespace is `default` unless it says otherwise; a secret's `stringData` is folded into its `data`. What an API
server would refuse is refused here, as `BadInput` with file and line; a secret's values are never part of a message.
The Go ancestors are `ValidateConfigMap` and `ValidateSecret` in pkg/apis/core/validation.
"""

import base64
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.manifest import Document, decode
from podkeeper.rules.static import DEFAULT_NAMESPACE
from podkeeper.rules.validate import names

MOST_BYTES: Final = 1024 * 1024
"""Of one object's values together."""

_DEFAULT_SECRET_TYPE: Final = "Opaque"
_SECRET_FIELDS: Final = ("data", "stringData")


def config_map_from(document: Document) -> ConfigMap:
    """The config map that a document describes. Raises `BadInput` with every problem."""
    found = decode(document, ConfigMap)
    _refuse(document, _config_map_problems(found))
    return replace(found, metadata=_at_home(found.metadata))


def secret_from(document: Document) -> Secret:
    """The secret that a document describes. Raises `BadInput` with every problem."""
    try:
        found = decode(document, Secret)
    except BadInput as error:
        raise BadInput(*map(_without_value, error.problems)) from None  # the cause would quote the value
    folded = {key: base64.b64encode(text.encode()).decode() for key, text in (found.string_data or {}).items()}
    data = {**(found.data or {}), **folded} or None
    found = replace(found, data=data, string_data=None, type=found.type or _DEFAULT_SECRET_TYPE)
    _refuse(document, _secret_problems(found))
    return replace(found, metadata=_at_home(found.metadata))


def _at_home(metadata: ObjectMeta) -> ObjectMeta:
    return replace(metadata, namespace=metadata.namespace or DEFAULT_NAMESPACE)


def _refuse(document: Document, problems: Iterator[Problem]) -> None:
    if found := tuple(map(document.locate, problems)):
        raise BadInput(*found)


def _config_map_problems(found: ConfigMap) -> Iterator[Problem]:
    yield from _identity_problems(found.metadata)
    data, binary = found.data or {}, found.binary_data or {}
    for field, keys in (("data", data), ("binaryData", binary)):
        for key in keys:
            yield from names.data_key(f"{field}[{key}]", key)
    for key in data.keys() & binary.keys():
        yield names.repeated(f"binaryData[{key}]", key)
    yield from _size_problems(sum(map(_bytes_of_text, data.values())) + sum(map(_bytes_of_base64, binary.values())))


def _secret_problems(found: Secret) -> Iterator[Problem]:
    yield from _identity_problems(found.metadata)
    data = found.data or {}
    for key in data:
        yield from names.data_key(f"data[{key}]", key)
    yield from _size_problems(sum(map(_bytes_of_base64, data.values())))


def _identity_problems(metadata: ObjectMeta) -> Iterator[Problem]:
    yield from names.dns_subdomain("metadata.name", metadata.name or "")
    yield from names.dns_label("metadata.namespace", metadata.namespace or DEFAULT_NAMESPACE)


def _size_problems(size: int) -> Iterator[Problem]:
    if size > MOST_BYTES:
        yield Problem(f"cannot hold {size} bytes in all; right would be at most {MOST_BYTES}", "data")


def _bytes_of_text(text: str) -> int:
    return len(text.encode())


def _bytes_of_base64(text: str) -> int:
    plain = "".join(text.split())
    return len(plain) * 3 // 4 - plain[-2:].count("=")


def _without_value(problem: Problem) -> Problem:
    """A problem with a secret's value, told without it."""
    field = problem.field.partition("[")[0].partition(".")[0]
    if field not in _SECRET_FIELDS:
        return problem
    right = "base64 (for plain text use stringData)" if field == "data" else "text (in quotes)"
    return Problem(f"cannot be used; {right} would be right; what it is now is not shown", *_place(problem))


def _place(problem: Problem) -> tuple[str, str, int]:
    return problem.field, problem.file, problem.line
