"""JSON patch (RFC 6902): operations applied in order, all or none.

    {"op": "replace", "path": "/spec/replicas", "value": 3}

Inputs are a document and operations. The output is the new document, or an `OperationError` that names the operation.
Containers are copied when an operation first changes them, so the cost of a patch is linear in its length.

The API server's library is more lenient than the RFC. This module is as lenient where clients may depend on it:
`replace` of an absent member adds it, `test` treats absent and null as equal, and negative indexes count from the end.
Elsewhere the RFC applies: `value` is required, `copy` needs an existing member, and a path starts with a slash.

Kubelet counterpart: `Patch.Apply` of evanphx/json-patch. The limits are those of the API server.
"""

import json

from podkeeper.rules.patch.errors import OperationError, PatchError, PatchTooLarge
from podkeeper.rules.patch.pointer import AFTER_LAST, BadPointer, index_in, member, pointer_to, tokens_of
from podkeeper.rules.patch.value import Json, JsonObject, check_depth, same, type_name

# The API server's limits for JSON patches.
MAX_OPERATIONS = 10_000
MAX_COPY_BYTES = 3 * 1024 * 1024

_REQUIRED_MEMBERS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("path", "from"),
    "copy": ("path", "from"),
    "test": ("path", "value"),
}


def apply(
    original: Json, patch: Json, *, max_operations: int = MAX_OPERATIONS, max_copy_bytes: int = MAX_COPY_BYTES
) -> Json:
    """Apply all operations. `max_copy_bytes` limits the total size that `copy` may add."""
    if not isinstance(patch, list):
        raise PatchError(f"cannot apply the patch: it is {type_name(patch)}, expected a list of operations")
    if len(patch) > max_operations:
        raise PatchTooLarge(
            f"cannot apply the patch: it has {len(patch)} operations, expected at most {max_operations}"
        )
    check_depth(patch, "the patch")
    document = _PatchedDocument(original, max_copy_bytes)
    for index, operation in enumerate(patch):
        _apply_operation(document, index, operation)
    check_depth(document.root, "the patched document")
    return document.root


def _apply_operation(document: "_PatchedDocument", index: int, operation: Json) -> None:
    if not isinstance(operation, dict):
        raise PatchError(f"cannot apply the operation: it is {type_name(operation)}, expected an object", f"[{index}]")
    name, path = operation.get("op"), operation.get("path")
    if not isinstance(name, str) or name not in _REQUIRED_MEMBERS:
        raise PatchError(
            f"cannot apply the operation: expected 'op' to be one of {', '.join(_REQUIRED_MEMBERS)}", f"[{index}].op"
        )
    try:
        for needed in _REQUIRED_MEMBERS[name]:
            if needed not in operation:
                raise BadPointer(f"{needed!r} is missing")
        at = tokens_of(path)
        match name:
            case "add":
                document.add(at, operation["value"])
            case "remove":
                document.remove(at)
            case "replace":
                document.replace(at, operation["value"])
            case "test":
                document.test(at, operation["value"])
            case "copy":
                document.copy(tokens_of(operation["from"]), at)
            case _:
                document.move(tokens_of(operation["from"]), at)
    except BadPointer as error:
        raise OperationError(index, name, path if isinstance(path, str) else "?", str(error)) from None


class _PatchedDocument:
    """A document being patched. Containers in `_owned` may be changed, all others are copied first."""

    def __init__(self, root: Json, max_copy_bytes: int) -> None:
        self.root = root
        self._copy_bytes_left = max_copy_bytes
        self._max_copy_bytes = max_copy_bytes
        self._owned: dict[int, Json] = {}  # by id; holding the container prevents reuse of its id

    def add(self, at: list[str], value: Json) -> None:
        if not at:
            self.root = value
            return
        match self._writable(at[:-1]):
            case dict() as members:
                members[at[-1]] = value
            case list() as items if at[-1] == AFTER_LAST:
                items.append(value)
            case list() as items:
                items.insert(index_in(at[-1], len(items) + 1), value)

    def remove(self, at: list[str]) -> None:
        if not at:
            raise BadPointer("the whole document cannot be removed")
        match self._writable(at[:-1]):
            case dict() as members:
                member(members, at[-1])
                del members[at[-1]]
            case list() as items:
                del items[index_in(at[-1], len(items))]

    def replace(self, at: list[str], value: Json) -> None:
        if not at:
            self.root = value
            return
        match self._writable(at[:-1]):
            case dict() as members:
                members[at[-1]] = value
            case list() as items:
                items[index_in(at[-1], len(items))] = value

    def test(self, at: list[str], value: Json) -> None:
        found: Json = self.root
        if at:
            parent = self._get(at[:-1])
            absent = isinstance(parent, dict) and at[-1] not in parent
            found = None if absent else member(parent, at[-1])
        if not same(found, value):
            raise BadPointer("the value differs from the expected value of the test")

    def copy(self, source: list[str], at: list[str]) -> None:
        value = self._get(source)
        check_depth(value, "the copied value")
        self._copy_bytes_left -= len(json.dumps(value, separators=(",", ":")))
        if self._copy_bytes_left < 0:
            raise PatchTooLarge(
                f"cannot use the patch: its copies have more than {self._max_copy_bytes} bytes in total"
            )
        self.add(at, _duplicate(value))

    def move(self, source: list[str], at: list[str]) -> None:
        value = self._get(source)
        if at[: len(source)] == source and len(at) > len(source):
            raise BadPointer("the target is inside the moved value")
        if at != source:
            self.remove(source)
            self.add(at, value)

    def _get(self, at: list[str]) -> Json:
        value = self.root
        for token in at:
            value = member(value, token)
        return value

    def _writable(self, at: list[str]) -> Json:
        """Return the container at a path. It and every container above it may be changed."""
        current = self.root = self._own(self.root)
        for token in at:
            inner = self._own(member(current, token))
            match current:
                case dict():
                    current[token] = inner
                case list():
                    current[index_in(token, len(current))] = inner
            current = inner
        if not isinstance(current, dict | list):
            raise BadPointer(f"its parent is {type_name(current)}, not an object or a list")
        return current

    def _own(self, value: Json) -> Json:
        """Return the container if it may be changed, else a shallow copy that may."""
        if not isinstance(value, dict | list) or id(value) in self._owned:
            return value
        own: Json = dict(value) if isinstance(value, dict) else list(value)
        self._owned[id(own)] = own
        return own


def _duplicate(value: Json) -> Json:
    """Return a deep copy, because an owned container must not have two parents."""
    match value:
        case dict():
            return {key: _duplicate(inner) for key, inner in value.items()}
        case list():
            return [_duplicate(inner) for inner in value]
        case _:
            return value


def diff(original: Json, modified: Json) -> list[JsonObject]:
    """Return operations that turn the original into the modified document."""
    check_depth(original, "the original")
    check_depth(modified, "the modified document")
    operations: list[JsonObject] = []
    _diff(original, modified, (), operations)
    return operations


def _diff(old: Json, new: Json, at: tuple[str, ...], operations: list[JsonObject]) -> None:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        operations += [{"op": "remove", "path": pointer_to((*at, key))} for key in old if key not in new]
        for key, value in new.items():
            if key in old:
                _diff(old[key], value, (*at, key), operations)
            else:
                operations.append({"op": "add", "path": pointer_to((*at, key)), "value": value})
    elif isinstance(old, list) and isinstance(new, list):
        _diff_lists(old, new, at, operations)
    elif not same(old, new):
        operations.append({"op": "replace", "path": pointer_to(at), "value": new})


def _diff_lists(old: list[Json], new: list[Json], at: tuple[str, ...], operations: list[JsonObject]) -> None:
    """Skip the common start and end, patch the items between them in pairs, then remove or add the rest."""
    shorter = min(len(old), len(new))
    start = next((index for index in range(shorter) if not same(old[index], new[index])), shorter)
    alike = range(shorter - start)
    end = next((count for count in alike if not same(old[-1 - count], new[-1 - count])), len(alike))
    old_end, new_end = len(old) - end, len(new) - end
    both = min(old_end, new_end)
    for index in range(start, both):
        _diff(old[index], new[index], (*at, str(index)), operations)
    operations += [{"op": "remove", "path": pointer_to((*at, str(index)))} for index in reversed(range(both, old_end))]
    operations += [
        {"op": "add", "path": pointer_to((*at, str(index))), "value": new[index]} for index in range(both, new_end)
    ]
