"""Split a manifest into documents and find the line of each field.

Input: a YAML or JSON text with any number of documents. Output: the valid documents, and the problems of the others.
An invalid document does not affect the others, because the text is split at `---` lines before YAML is parsed, as in
`kubectl`. Lists (`kind: List`, `PodList`, ...) are unpacked.

A document keeps its text and computes line numbers only on demand, because only errors need them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.field_path import FieldPath
from podkeeper.model.manifest import json_text
from podkeeper.model.manifest.scalars import shown
from podkeeper.model.manifest.tree import Unreadable, Value, find_lines, read_tree
from podkeeper.model.wire import JSONObject

_SEPARATOR: Final = re.compile(r"^---(.*)$", re.MULTILINE)
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_PART: Final = re.compile(r"\[([^]]*)]|([^.\[\]]+)")
_PLAIN_PART: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


@dataclass(frozen=True)
class Text:
    """The text of one document and its position in the file."""

    text: str
    file: str
    first_line: int

    @cached_property
    def lines(self) -> dict[FieldPath, int]:
        return {path: line + self.first_line - 1 for path, line in find_lines(self.text).items()}


@dataclass(frozen=True, slots=True)
class Document:
    """One object as plain values. They must not be mutated, because aliased parts are shared."""

    content: JSONObject
    source: Text
    prefix: FieldPath = ()  # the object's position in a list: ("items", "3")

    @property
    def api_version(self) -> str:
        """The value of `apiVersion`, empty if it is missing or not a string."""
        return _text(self.content.get("apiVersion"))

    @property
    def kind(self) -> str:
        """The value of `kind`, empty if it is missing or not a string."""
        return _text(self.content.get("kind"))

    def line_of(self, field: str) -> int:
        """Return the line of a field, or of the nearest enclosing field in the text."""
        path = (*self.prefix, *parse_path(field))
        lines = self.source.lines
        for length in range(len(path), 0, -1):
            if (line := lines.get(path[:length])) is not None:
                return line
        return next(iter(lines.values()), self.source.first_line)

    def problem(self, message: str, field: str = "") -> Problem:
        return Problem(message, field, self.source.file, self.line_of(field))

    def locate(self, problem: Problem) -> Problem:
        """Add file and line to a problem of this object."""
        return self.problem(problem.message, problem.field)


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """The valid documents of a text, and the problems of the others."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...]

    def all_valid(self) -> tuple[Document, ...]:
        """Return all documents. Raise `BadInput` if any document has a problem."""
        if self.problems:
            raise BadInput(*self.problems)
        return self.documents


def read_documents(data: bytes | str, file: str = "") -> ParsedManifest:
    """Parse a manifest. Never raises: the errors are in `problems`."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for found in _read(data, file):
        match found:
            case Document():
                documents.append(found)
            case Problem():
                problems.append(found)
    return ParsedManifest(tuple(documents), tuple(problems))


def parse_path(field: str) -> FieldPath:
    """Split a field name such as `spec.containers[0].name` or `metadata.labels[example.com/x]`."""
    return tuple(inside or name for inside, name in _PART.findall(field))


def format_path(path: FieldPath) -> str:
    """Join the parts of a field name. Indexes, and keys that are not identifiers, are put in brackets."""
    parts = (f".{part}" if _PLAIN_PART.fullmatch(part) else f"[{part}]" for part in path)
    return "".join(parts).removeprefix(".")


def _read(data: bytes | str, file: str) -> Iterator[Document | Problem]:
    try:
        text = _decoded(data)
    except Unreadable as error:
        yield Problem(error.message, "", file, error.line)
        return
    end, line = 0, 1
    if text.lstrip().startswith("{"):
        for found in json_text.objects(text):
            line += text.count("\n", end, found.start)
            yield from _from_value(found.value, Text(text[found.start : found.end], file, line))
            line += text.count("\n", found.start, found.end)
            end = found.end
    # The rest after JSON objects, or all of the text, may be YAML.
    for chunk, first_line in _chunks(text[end:], line):
        yield from _from_value(_value_of(chunk), Text(chunk, file, first_line))


def _decoded(data: bytes | str) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    try:
        return data.decode("utf-16") if data.startswith(_UTF16_MARKS) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"cannot decode the file: {error.reason} at byte {error.start}; expected UTF-8"
        raise Unreadable(message, data.count(b"\n", 0, error.start) + 1) from error


def _chunks(text: str, line: int) -> Iterator[tuple[str, int]]:
    """Yield the texts between `---` lines and the first line of each. A text includes the separator before it."""
    start = 0
    for end in (*(match.start() for match in _SEPARATOR.finditer(text)), len(text)):
        chunk = text[start:end]
        if end < len(text) and _is_prologue(chunk):
            continue  # directives (%YAML) belong to the next document
        if chunk.removeprefix("---").strip():
            yield chunk, line
        line += chunk.count("\n")
        start = end


def _is_prologue(chunk: str) -> bool:
    return ("\n" + chunk).count("\n%") > 0 and all(
        line.startswith(("%", "#")) for line in chunk.splitlines() if line.strip()
    )


def _value_of(chunk: str) -> Value | Unreadable:
    separator = _SEPARATOR.search(chunk)
    behind = separator[1].strip() if separator is not None else ""
    if separator is not None and behind and not behind.startswith("#"):
        message = f"cannot parse {shown(behind)} after the separator ---; move it to the next line"
        return Unreadable(message, chunk.count("\n", 0, separator.start()) + 1)
    try:
        return read_tree(chunk)
    except Unreadable as error:
        return error


def _from_value(value: Value | Unreadable, source: Text) -> Iterator[Document | Problem]:
    if isinstance(value, Unreadable):
        line = value.line + source.first_line - 1
        yield Problem(value.message, format_path(value.path), source.file, line)
    elif value is not None:
        yield from _unpacked(value, source, ())


def _unpacked(value: Value, source: Text, prefix: FieldPath) -> Iterator[Document | Problem]:
    """Yield the object, or the items if the object is a list."""
    if not isinstance(value, dict):
        message = f"Invalid value: {kind_of_value(value)}: must be an object with apiVersion and kind"
        yield Document({}, source).problem(message, format_path(prefix))
        return
    document = Document(value, source, prefix)
    if not document.kind.endswith("List") or (document.kind != "List" and "items" not in value):
        yield document
        return
    items = [] if value.get("items") is None else value["items"]
    if not isinstance(items, list):
        yield document.problem(f"Invalid value: {kind_of_value(items)}: must be a list of objects", "items")
        return
    # The items of a typed list (PodList) may omit apiVersion and kind.
    implied = {"apiVersion": document.api_version, "kind": document.kind.removesuffix("List")}
    for number, item in enumerate(items):
        if document.kind != "List" and isinstance(item, dict):
            item = implied | item
        yield from _unpacked(item, source, (*prefix, "items", str(number)))


def kind_of_value(value: Value) -> str:
    """Describe a value and its JSON type for an error message."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean {str(value).lower()}"
        case int() | float():
            return f"number {value}"
        case str():
            return f"string {shown(value)}"
        case list():
            return "list"
        case _:
            return "mapping"


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""
