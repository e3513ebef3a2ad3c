"""Documents: the objects of a manifest text, each with its place in the file.

A text comes in, YAML or JSON, one document or many; out come the sound documents and the
problems of the others: one bad document never harms another. `---` lines part documents before
YAML is read at all, as `kubectl` does; lists (`kind: List`, `PodList`, ...) are unpacked.

A document keeps its text and looks for lines only when somebody asks, that is, in an error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.manifest import json_text
from podkeeper.model.manifest.scalars import shown
from podkeeper.model.manifest.tree import Path, Unreadable, Value, find_lines, read_tree
from podkeeper.model.wire import JSONObject

_SEPARATOR: Final = re.compile(r"^---(.*)$", re.MULTILINE)
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_PART: Final = re.compile(r"\[([^]]*)]|([^.\[\]]+)")
_PLAIN_PART: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


@dataclass(frozen=True)
class Text:
    """The text of one document, and where it stands in its file."""

    text: str
    file: str
    first_line: int

    @cached_property
    def lines(self) -> dict[Path, int]:
        """The line in the file of every field."""
        return {path: line + self.first_line - 1 for path, line in find_lines(self.text).items()}


@dataclass(frozen=True, slots=True)
class Document:
    """One object as it was written: plain values, never to be mutated."""

    content: JSONObject
    source: Text
    prefix: Path = ()  # where a list held this object: ("items", "3")

    @property
    def api_version(self) -> str:
        """What `apiVersion` says; empty when it says nothing sensible."""
        return _text(self.content.get("apiVersion"))

    @property
    def kind(self) -> str:
        """What `kind` says; empty when it says nothing sensible."""
        return _text(self.content.get("kind"))

    def line_of(self, field: str) -> int:
        """The line where a field stands, or the nearest part around it that can be found."""
        path = (*self.prefix, *parse_path(field))
        lines = self.source.lines
        for length in range(len(path), 0, -1):
            if (line := lines.get(path[:length])) is not None:
                return line
        return next(iter(lines.values()), self.source.first_line)

    def problem(self, message: str, field: str = "") -> Problem:
        """Something wrong with this document, with its place."""
        return Problem(message, field, self.source.file, self.line_of(field))

    def locate(self, problem: Problem) -> Problem:
        """A problem that somebody found in this object without knowing the file."""
        return self.problem(problem.message, problem.field)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text held: the documents that can be used, and what is wrong with the others."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...]

    def all_sound(self) -> tuple[Document, ...]:
        """The documents of a text without any problem; otherwise raises `BadInput`."""
        if self.problems:
            raise BadInput(*self.problems)
        return self.documents


def read_documents(data: bytes | str, file: str = "") -> Reading:
    """Read a manifest. Never raises on bad text: what cannot be read is in `problems`."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for found in _read(data, file):
        match found:
            case Document():
                documents.append(found)
            case Problem():
                problems.append(found)
    return Reading(tuple(documents), tuple(problems))


def parse_path(field: str) -> Path:
    """The parts of a field's name: `spec.containers[0].name`, `metadata.labels[example.com/x]`."""
    return tuple(inside or name for inside, name in _PART.findall(field))


def format_path(path: Path) -> str:
    """The name of a field from its parts; numbers and keys that are not simple names stand in brackets."""
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
    for chunk, first_line in _chunks(text[end:], line):
        yield from _from_value(_value_of(chunk), Text(chunk, file, first_line))


def _decoded(data: bytes | str) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    try:
        return data.decode("utf-16") if data.startswith(_UTF16_MARKS) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"cannot read this as text: {error.reason} at byte {error.start}; UTF-8 would be right"
        raise Unreadable(message, data.count(b"\n", 0, error.start) + 1) from error


def _chunks(text: str, line: int) -> Iterator[tuple[str, int]]:
    """The texts between `---` lines, each with the separator before it, and the line where each begins."""
    start = 0
    for end in (*(match.start() for match in _SEPARATOR.finditer(text)), len(text)):
        chunk = text[start:end]
        if end < len(text) and _is_prologue(chunk):
            continue  # directives belong to the document after them
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
        message = f"cannot read {shown(behind)} behind the separator ---; it would have to stand on the next line"
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


def _unpacked(value: Value, source: Text, prefix: Path) -> Iterator[Document | Problem]:
    """The objects in a value: itself, or what it holds when it is a list of objects."""
    if not isinstance(value, dict):
        message = f"cannot be {kind_of_value(value)}; an object with apiVersion and kind would be right"
        yield Document({}, source).problem(message, format_path(prefix))
        return
    document = Document(value, source, prefix)
    if not document.kind.endswith("List") or (document.kind != "List" and "items" not in value):
        yield document
        return
    items = [] if value.get("items") is None else value["items"]
    if not isinstance(items, list):
        yield document.problem(f"cannot be {kind_of_value(items)}; a list of objects would be right", "items")
        return
    # The items of a typed list need not repeat what they are.
    implied = {"apiVersion": document.api_version, "kind": document.kind.removesuffix("List")}
    for number, item in enumerate(items):
        if document.kind != "List" and isinstance(item, dict):
            item = implied | item
        yield from _unpacked(item, source, (*prefix, "items", str(number)))


def kind_of_value(value: Value) -> str:
    """What a plain value is, in a reader's words."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {shown(value)}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""
