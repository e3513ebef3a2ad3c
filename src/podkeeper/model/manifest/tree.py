"""From YAML text to plain values, one document at a time, without recursion.

The parser's events come in; dicts, lists and scalars go out, as `kubectl` would turn them into
JSON. An explicit stack stands where PyYAML's composer recurses: it kills the process on deep
nesting. Budgets keep a small text from becoming a huge value: depth, and what aliases repeat.
Aliased parts are shared, not copied; whoever writes the value out pays for them in full, so they
are counted in full here.

Two things Go does that a reader may not expect: a merge key (`<<`) acts where it stands, so that it
overrides the keys before it and yields to those after; and only the first document of a text
counts. Duplicate keys are refused, where Go silently takes the last one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from podkeeper.model.manifest import scalars

Value = Any  # what JSON can hold; it stays untyped until `typed.decode` gives it a type

MAX_DEPTH: Final = 256  # far above any real object, far below what recursion stands
_SHOWN_DEPTH: Final = 12  # a longer path helps nobody
MAX_ALIASED_CHARACTERS: Final = 16 * 2**20
# Go's measure for "excessive aliasing": the share of nodes that may come from aliases, by document size.
_ALIASES_ALWAYS_FINE: Final = 100
_NODES_ALWAYS_FINE: Final = 1_000
_SMALL_NODES, _LARGE_NODES = 400_000, 4_000_000
_SMALL_SHARE, _LARGE_SHARE = 0.99, 0.10

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

# What a frame's key may be besides a name.
_NO_KEY: Final = object()  # in a mapping, between two entries
_MERGE: Final = object()  # after `<<`
_ITEM: Final = object()  # always in a list

Path = tuple[str, ...]
"""The way to a field: names, and the numbers of list items as text."""


class Unreadable(Exception):
    """A text that is not one sound document: why, in which line of it (from 1), and at which field."""

    def __init__(self, message: str, line: int, path: Path = ()) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.path = path


@dataclass(slots=True)
class _Frame:
    """A mapping or sequence that is still open."""

    value: Value
    anchor: str | None
    nodes_before: int
    characters_before: int
    key: str | object = _NO_KEY  # of the entry being read
    levels: int = 1  # of this collection, as far as it has been read
    merged: set[str] = field(default_factory=set)  # keys that came from a merge and may be overridden


@dataclass(frozen=True, slots=True)
class _Anchored:
    """What an alias stands for, and what repeating it costs."""

    value: Value
    levels: int
    nodes: int
    characters: int


def read_tree(text: str) -> Value:
    """The value of the first document in the text; None when there is none. Raises `Unreadable`."""
    return _Builder().read(text)


def find_lines(text: str) -> dict[Path, int]:
    """The line (from 1) where each field of the first document begins; as far as the text can be read."""
    lines: dict[Path, int] = {}
    try:
        for path, line in _fields(text):
            lines.setdefault(path, line)
    except Unreadable:  # JSON that is not quite YAML: the lines up to there still help
        pass
    return lines


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        next_event = _LOADER(text).get_event
        while (event := next_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        about = ", ".join(filter(None, [error.context, error.problem]))
        raise Unreadable(f"cannot read this as YAML: {about}", mark.line + 1 if mark else 1) from error
    except yaml.reader.ReaderError as error:
        # libyaml counts its position in bytes.
        before = text.encode()[: error.position].decode(errors="replace")
        message = f"cannot read this as YAML: {error.reason} (character {error.character!r})"
        raise Unreadable(message, before.count("\n") + 1) from error


def _line(event: yaml.Event) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1


def _value_of(event: yaml.ScalarEvent, text: str) -> Value:
    if event.tag is not None:
        return scalars.tagged_value(event.tag, text)
    return scalars.plain_value(text) if event.implicit[0] else text


class _Builder:
    """Builds one document's value from events."""

    def __init__(self) -> None:
        self._stack: list[_Frame] = []
        self._anchors: dict[str, _Anchored | None] = {}  # None while the anchor's own value is being read
        self._root: Value = None
        self._nodes = 1  # all of them, those that aliases repeat included
        self._characters = 0
        self._aliased_nodes = 0
        self._aliased_characters = 0

    def read(self, text: str) -> Value:
        for event in _events(text):
            try:
                match event:
                    case yaml.ScalarEvent():
                        self._scalar(event)
                    case yaml.MappingStartEvent():
                        self._open({}, event.anchor)
                    case yaml.SequenceStartEvent():
                        self._open([], event.anchor)
                    case yaml.CollectionEndEvent():
                        self._close()
                    case yaml.AliasEvent():
                        self._alias(str(event.anchor))
                    case yaml.DocumentEndEvent():
                        return self._root
            except scalars.NotReadable as error:
                raise Unreadable(str(error), _line(event), self._path()) from error
        return None

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        self._nodes += 1
        self._characters += len(text)
        if self._stack and self._stack[-1].key is _NO_KEY:
            self._key(event, text)
        else:
            value = _value_of(event, text)
            if event.anchor is not None:
                self._anchors[event.anchor] = _Anchored(value, 0, 1, len(text))
            self._put(value)

    def _key(self, event: yaml.ScalarEvent, text: str) -> None:
        plain = event.tag is None and event.implicit[0]
        if text == "<<" and (plain or event.tag == scalars.MERGE_TAG):
            self._stack[-1].key = _MERGE
        elif plain:
            self._name_entry(scalars.plain_key(text))
        else:
            self._name_entry(text if event.tag is None else scalars.tagged_key(event.tag, text))
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(_value_of(event, text), 0, 1, len(text))

    def _open(self, value: Value, anchor: str | None) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise scalars.NotReadable(f"cannot go deeper than {MAX_DEPTH} levels")
        if self._stack and self._stack[-1].key is _NO_KEY:
            raise scalars.NotReadable("cannot use a list or a mapping as a key")
        if anchor is not None:
            self._anchors[anchor] = None
        key = _NO_KEY if type(value) is dict else _ITEM
        self._stack.append(_Frame(value, anchor, self._nodes, self._characters, key))
        self._nodes += 1

    def _close(self) -> None:
        frame = self._stack.pop()
        if frame.anchor is not None:
            nodes, characters = self._nodes - frame.nodes_before, self._characters - frame.characters_before
            self._anchors[frame.anchor] = _Anchored(frame.value, frame.levels, nodes, characters)
        self._contain(frame.levels)
        self._put(frame.value)

    def _contain(self, levels: int) -> None:
        """Note that the open collection holds one of so many levels: aliases can nest without brackets."""
        if len(self._stack) + levels > MAX_DEPTH:
            raise scalars.NotReadable(f"cannot go deeper than {MAX_DEPTH} levels")
        if self._stack:
            self._stack[-1].levels = max(self._stack[-1].levels, levels + 1)

    def _alias(self, anchor: str) -> None:
        if anchor not in self._anchors:
            raise scalars.NotReadable(f"cannot find the anchor &{anchor}; it must stand before *{anchor}")
        anchored = self._anchors[anchor]
        if anchored is None:
            raise scalars.NotReadable(f"cannot put *{anchor} inside &{anchor}: it would contain itself")
        self._nodes += 1 + anchored.nodes
        self._characters += anchored.characters
        self._aliased_nodes += anchored.nodes
        self._aliased_characters += anchored.characters
        if self._aliases_too_much():
            raise scalars.NotReadable("cannot accept so much repetition by aliases; write the parts out")
        self._contain(anchored.levels)
        if self._stack and self._stack[-1].key is _NO_KEY:
            if isinstance(anchored.value, (dict, list)):
                raise scalars.NotReadable("cannot use a list or a mapping as a key")
            self._name_entry(scalars.key_text(anchored.value))
        else:
            self._put(anchored.value, from_alias=True)

    def _aliases_too_much(self) -> bool:
        if self._aliased_characters > MAX_ALIASED_CHARACTERS:
            return True
        if self._aliased_nodes <= _ALIASES_ALWAYS_FINE or self._nodes <= _NODES_ALWAYS_FINE:
            return False
        along = min(max((self._nodes - _SMALL_NODES) / (_LARGE_NODES - _SMALL_NODES), 0.0), 1.0)
        return self._aliased_nodes / self._nodes > _SMALL_SHARE + along * (_LARGE_SHARE - _SMALL_SHARE)

    def _name_entry(self, key: str) -> None:
        frame = self._stack[-1]
        if key in frame.value and key not in frame.merged:
            raise scalars.NotReadable(scalars.repetition(key))
        frame.key = key

    def _put(self, value: Value, from_alias: bool = False) -> None:
        if not self._stack:
            self._root = value
            return
        frame = self._stack[-1]
        if frame.key is _ITEM:
            frame.value.append(value)
            return
        if frame.key is _MERGE:
            self._merge(frame, value, from_alias)
        else:
            frame.value[frame.key] = value
            frame.merged.discard(frame.key)
        frame.key = _NO_KEY

    def _merge(self, frame: _Frame, value: Value, from_alias: bool) -> None:
        # The first of a list wins, so the last goes in first. An alias of a list is not a list to Go.
        parts = value[::-1] if isinstance(value, list) and not from_alias else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise scalars.NotReadable("cannot merge (<<) anything but a mapping or a list of mappings")
        for part in parts:
            frame.merged.update(part.keys() - (frame.value.keys() - frame.merged))
            frame.value.update(part)

    def _path(self) -> Path:
        parts = [
            str(len(frame.value)) if frame.key is _ITEM else frame.key if isinstance(frame.key, str) else ""
            for frame in self._stack[:_SHOWN_DEPTH]
        ]
        return tuple(filter(None, parts))


@dataclass(slots=True)
class _Place:
    """A collection on the way to a field: where it stands, and which entry of it is being read."""

    path: Path
    next_item: int | None  # None in a mapping
    key: str | None = None


def _fields(text: str) -> Iterator[tuple[Path, int]]:
    """Every field of the first document with its line: the key's, or that of a list's item."""
    stack: list[_Place] = []
    for event in _events(text):
        match event:
            case yaml.DocumentEndEvent():
                return
            case yaml.CollectionEndEvent():
                stack.pop()
            case yaml.NodeEvent():
                path: Path = ()
                if stack:
                    place = stack[-1]
                    if place.next_item is not None:
                        path = (*place.path, str(place.next_item))
                        place.next_item += 1
                        yield path, _line(event)
                    elif place.key is None:
                        place.key = event.value if isinstance(event, yaml.ScalarEvent) else ""
                        yield (*place.path, place.key), _line(event)
                        continue
                    else:
                        path, place.key = (*place.path, place.key), None
                if isinstance(event, yaml.CollectionStartEvent):
                    stack.append(_Place(path, 0 if isinstance(event, yaml.SequenceStartEvent) else None))
