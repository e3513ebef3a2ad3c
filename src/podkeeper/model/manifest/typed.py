"""Convert the plain values of a document to a typed object and report all errors.

If the values match the struct, msgspec converts them at once. Otherwise a slower walk along the type collects all
errors with field and line. The same walk has two more results:

* the unknown fields, which the kubelet ignores and strict validation rejects
* `null` in a list or map replaced by the zero value, as in Go (an annotation without a value is ""). msgspec would
  reject it.

msgspec accepts any string as a time, quantity or base64 text, so this module checks these, too.
"""

import base64
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.field_path import FieldPath
from podkeeper.model.k8s.kinds import KINDS
from podkeeper.model.manifest.documents import Document, format_path, kind_of_value
from podkeeper.model.manifest.scalars import shown
from podkeeper.model.manifest.tree import Value
from podkeeper.model.quantity import parse_quantity
from podkeeper.model.times import parse_time
from podkeeper.model.wire import Wire

W = TypeVar("W", bound=Wire)

# Per document, separately for errors and unknown fields; a longer list does not help the user.
MAX_PROBLEMS: Final = 100
_MAX_SUGGESTIONS: Final = 20  # the search for similar names is slow


def type_of(document: Document, kinds: Mapping[tuple[str, str], type[Wire]] = KINDS) -> type[Wire]:
    """Return the struct for a document's kind. Raises `BadInput` if the kind is missing or unknown."""
    missing = [
        document.problem(f"Required value: must be set (for a pod: {example})", field)
        for field, found, example in (
            ("apiVersion", document.api_version, "v1"),
            ("kind", document.kind, "Pod"),
        )
        if not found
    ]
    if missing:
        raise BadInput(*missing)
    wanted = kinds.get((document.api_version, document.kind))
    if wanted is None:
        message = f"Unsupported value: {shown(document.kind)}: unknown kind of apiVersion {shown(document.api_version)}"
        raise BadInput(document.problem(message, "kind"))
    return wanted


def decode(document: Document, wanted: type[W]) -> W:
    """Return the document as a typed object. Ignores unknown fields. Raises `BadInput` with all problems."""
    walk = _Walk(document)
    try:
        # msgspec is fast but reports only the first error. The slow walk runs only if there is one, and collects all of
        # them.
        decoded = msgspec.convert(document.content, wanted)
        walk.check_marked(document.content, _inspected(wanted), ())
    except msgspec.ValidationError:
        fixed = walk.visit(document.content, _inspected(wanted), ())
        decoded = None
    if walk.problems:
        raise BadInput(*walk.problems)
    return msgspec.convert(fixed, wanted) if decoded is None else decoded


def unknown_fields(document: Document, wanted: type[Wire]) -> tuple[Problem, ...]:
    """Return the fields that the type does not have. The kubelet ignores them."""
    walk = _Walk(document)
    walk.visit(document.content, _inspected(wanted), ())
    return tuple(walk.unknown)


class _Walk:
    """One walk along a value and its expected type."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []
        self.unknown: list[Problem] = []

    def visit(self, value: Value, wanted: inspect.Type, path: FieldPath) -> Value:
        """Return the value with nulls replaced. Errors and unknown fields are added to the lists."""
        match _bare(wanted):
            case inspect.StructType() as struct if isinstance(value, dict):
                return self._visit_struct(value, struct, path)
            case inspect.VarTupleType(item_type=item_type) if isinstance(value, list):
                return [self._visit_part(item, item_type, (*path, str(i))) for i, item in enumerate(value)]
            case inspect.DictType(value_type=value_type) if isinstance(value, dict):
                return {key: self._visit_part(part, value_type, (*path, key)) for key, part in value.items()}
            case leaf if _fits(value, leaf):
                self._check(value, _mark_of(wanted), path)
                return value
            case other:
                message = f"Invalid value: {kind_of_value(value)}: must be {_expected(other, value)}"
                self._note(self.problems, message, path)
                return None

    def check_marked(self, value: Value, wanted: inspect.Type, path: FieldPath) -> None:
        """Visit only the times, quantities and base64 texts of a value that msgspec has accepted."""
        match _bare(wanted):
            case inspect.StructType() as struct if isinstance(value, dict):
                for name, marked in _marked_fields_of(struct).items():
                    if (part := value.get(name)) is not None:
                        self.check_marked(part, marked, (*path, name))
            case inspect.VarTupleType(item_type=item_type) if isinstance(value, list):
                for index, item in enumerate(value):
                    self.check_marked(item, item_type, (*path, str(index)))
            case inspect.DictType(value_type=value_type) if isinstance(value, dict):
                for key, part in value.items():
                    self.check_marked(part, value_type, (*path, key))
            case _:
                self._check(value, _mark_of(wanted), path)

    def _check(self, value: Value, mark: str | None, path: FieldPath) -> None:
        if mark is None:
            return
        try:
            _READERS[mark](value)
        except BadInput as error:
            self._note(self.problems, error.problems[0].message, path)

    def _visit_struct(self, value: dict[str, Value], struct: inspect.StructType, path: FieldPath) -> dict[str, Value]:
        fields = _fields_of(struct)
        result = {}
        for name, part in value.items():
            if name not in fields:
                self._note_unknown((*path, name), struct.cls.__name__, fields)
            elif part is not None:
                result[name] = self.visit(part, fields[name], (*path, name))
        return result

    def _visit_part(self, value: Value, wanted: inspect.Type, path: FieldPath) -> Value:
        return _zero(_bare(wanted)) if value is None else self.visit(value, wanted, path)

    def _note_unknown(self, path: FieldPath, struct: str, fields: Mapping[str, inspect.Type]) -> None:
        similar = get_close_matches(path[-1][:80], fields, n=1) if len(self.unknown) < _MAX_SUGGESTIONS else []
        hint = f"; did you mean {similar[0]}?" if similar else ""
        self._note(self.unknown, f"unknown field of {struct}{hint}", path)

    def _note(self, notes: list[Problem], message: str, path: FieldPath) -> None:
        if len(notes) < MAX_PROBLEMS:
            notes.append(self._document.problem(message, format_path(path)))


_inspected = cache(inspect.type_info)  # cached, because the type of a pod is a large tree
_fields_by_struct: dict[type, Mapping[str, inspect.Type]] = {}
_marked_by_struct: dict[type, Mapping[str, inspect.Type]] = {}


def _fields_of(struct: inspect.StructType) -> Mapping[str, inspect.Type]:
    """Return the fields of a struct by their names in the API."""
    if struct.cls not in _fields_by_struct:
        _fields_by_struct[struct.cls] = {field.encode_name: field.type for field in struct.fields}
    return _fields_by_struct[struct.cls]


def _marked_fields_of(struct: inspect.StructType) -> Mapping[str, inspect.Type]:
    """Return the fields of a struct that contain marked texts at any depth."""
    if struct.cls not in _marked_by_struct:
        fields = _fields_of(struct).items()
        _marked_by_struct[struct.cls] = {name: wanted for name, wanted in fields if _leads_to_mark(wanted)}
    return _marked_by_struct[struct.cls]


def _leads_to_mark(wanted: inspect.Type) -> bool:
    match _bare(wanted):
        case inspect.StructType() as struct:
            return bool(_marked_fields_of(struct))
        case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
            return _leads_to_mark(inner)
        case _:
            return _mark_of(wanted) is not None


def _bare(wanted: inspect.Type) -> inspect.Type:
    """Return the type without `| None` and without its mark."""
    if isinstance(wanted, inspect.Metadata):
        return wanted.type
    if not isinstance(wanted, inspect.UnionType):
        return wanted
    rest = tuple(option for option in wanted.types if not isinstance(option, inspect.NoneType))
    return _bare(rest[0]) if len(rest) == 1 else inspect.UnionType(rest)


def _mark_of(wanted: inspect.Type) -> str | None:
    """Return the format that texts of this type must have, if any."""
    match wanted:
        case inspect.Metadata(extra={"reads_as": str(mark)}):
            return mark
        case inspect.UnionType(types=options):
            return next(filter(None, map(_mark_of, options)), None)
        case _:
            return None


def _read_base64(value: Value) -> None:
    try:
        base64.b64decode(str(value).replace("\r", "").replace("\n", ""), validate=True)
    except ValueError as error:
        raise BadInput(Problem(f"Invalid value: not base64 ({error}); use stringData for plain text")) from error


_READERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "time": parse_time,
    "micro time": parse_time,
    "quantity": parse_quantity,
    "base64": _read_base64,
}


def _fits(value: Value, wanted: inspect.Type) -> bool:
    match wanted:
        case inspect.AnyType():
            return True
        case inspect.UnionType(types=options):
            return any(_fits(value, option) for option in options)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.FloatType():
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case inspect.IntType(ge=low, le=high):
            return (
                isinstance(value, int)
                and not isinstance(value, bool)
                and (low is None or value >= low)
                and (high is None or value <= high)
            )
        case _:
            return False


def _expected(wanted: inspect.Type, value: Value) -> str:
    """Describe the expected type, with a hint if only the quotes are wrong."""
    match wanted:
        case inspect.UnionType(types=options):
            return " or ".join(sorted({_expected(option, None) for option in options}))
        case inspect.StrType():
            return "a string" if value is None or isinstance(value, (str, list, dict)) else "a string (in quotes)"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=low, le=high) if isinstance(value, int) and not isinstance(value, bool):
            return f"an integer between {low} and {high}"
        case inspect.IntType():
            digits = isinstance(value, str) and value.removeprefix("-").isdecimal()
            return "an integer (without quotes)" if digits else "an integer"
        case inspect.FloatType():
            return "a number"
        case inspect.VarTupleType():
            return "a list"
        case _:
            return "a mapping"


def _zero(wanted: inspect.Type) -> Value:
    """Return the value that Go uses for a null in a list or map."""
    match wanted:
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            return 0
        case inspect.UnionType():  # only quantities are unions
            return "0"
        case inspect.VarTupleType():
            return []
        case inspect.StructType() | inspect.DictType():
            return {}
        case _:
            return None
