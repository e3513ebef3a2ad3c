"""Parse one YAML document into plain values, without recursion.

Input: the events of PyYAML. Output: dicts, lists and scalars, as `kubectl` would convert them to JSON. The builder has
its own stack, because PyYAML's composer recurses and crashes the process on deep nesting.

Depth and aliases are limited, so that a small text cannot become a huge value. Aliased parts are shared, not copied.
But each alias counts with its full size, because encoding the value repeats it.

Two surprising rules of Go apply here, too. A merge key (`<<`) overrides the keys before it, and the keys after it
override the merged ones. Only the first document of a text is used. One difference: duplicate keys are an error. Go
uses the last one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from podkeeper.model.field_path import FieldPath
from podkeeper.model.manifest import scalars

Value = Any  # any JSON value; `typed.decode` converts it to a typed object

MAX_DEPTH: Final = 256  # far above any real object, far below Python's recursion limit
_SHOWN_DEPTH: Final = 12  # a longer path does not help the reader
# go-yaml counts only nodes. A long text that is repeated by aliases needs memory as well when the value is encoded.
MAX_ALIASED_CHARACTERS: Final = 16 * 2**20
# go-yaml's limit for "excessive aliasing": the share of nodes that may come from aliases, by document size.
_MIN_ALIASES: Final = 100
_MIN_NODES: Final = 1_000
_SMALL_NODES, _LARGE_NODES = 400_000, 4_000_000
_SMALL_SHARE, _LARGE_SHARE = 0.99, 0.10

# libyaml is much faster, but PyYAML can be built without it.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

# Special values of a frame's key.
_NO_KEY: Final = object()  # in a mapping, between two entries
_MERGE: Final = object()  # after `<<`
_ITEM: Final = object()  # always in a list


class Unreadable(Exception):
    """A text that is not a valid document, with the line in this text (starting at 1) and the field."""

    def __init__(self, message: str, line: int, path: FieldPath = ()) -> None:
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
    levels: int = 1  # nesting depth of this collection so far
    merged: set[str] = field(default_factory=set)  # keys from a merge, which later keys may override


@dataclass(frozen=True, slots=True)
class _Anchored:
    """The value of an anchor, and the nodes and characters that each alias adds."""

    value: Value
    levels: int
    nodes: int
    characters: int


def read_tree(text: str) -> Value:
    """Return the value of the first document, or None if there is none. Raises `Unreadable`."""
    return _Builder().read(text)


def find_lines(text: str) -> dict[FieldPath, int]:
    """Return the line (starting at 1) of each field of the first document, up to the first syntax error."""
    lines: dict[FieldPath, int] = {}
    try:
        for path, line in _fields(text):
            lines.setdefault(path, line)
    except Unreadable:  # some JSON is not valid YAML; the lines before the error are still correct
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
        raise Unreadable(f"cannot parse YAML: {about}", mark.line + 1 if mark else 1) from error
    except yaml.reader.ReaderError as error:
        # libyaml reports the position in bytes.
        before = text.encode()[: error.position].decode(errors="replace")
        message = f"cannot parse YAML: {error.reason} (character {error.character!r})"
        raise Unreadable(message, before.count("\n") + 1) from error


def _line(event: yaml.Event) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1


def _value_of(event: yaml.ScalarEvent, text: str) -> Value:
    if event.tag is not None:
        return scalars.tagged_value(event.tag, text)
    return scalars.plain_value(text) if event.implicit[0] else text


class _Builder:
    def __init__(self) -> None:
        self._stack: list[_Frame] = []
        self._anchors: dict[str, _Anchored | None] = {}  # None until the anchor's value is complete
        self._root: Value = None
        self._nodes = 1  # all nodes, including those repeated by aliases
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
            raise scalars.NotReadable(scalars.TOO_DEEP.format(MAX_DEPTH))
        if self._stack and self._stack[-1].key is _NO_KEY:
            raise scalars.NotReadable("cannot use a list or a mapping as a key")
        if anchor is not None:
            # Not complete yet, so that an alias inside its own anchor is an error and not a cycle.
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
        """Add a collection with this many levels to the open one.

        An alias adds levels without a start event, so the parser's own depth is not enough.
        """
        if len(self._stack) + levels > MAX_DEPTH:
            raise scalars.NotReadable(scalars.TOO_DEEP.format(MAX_DEPTH))
        if self._stack:
            self._stack[-1].levels = max(self._stack[-1].levels, levels + 1)

    def _alias(self, anchor: str) -> None:
        if anchor not in self._anchors:
            raise scalars.NotReadable(f"cannot find the anchor &{anchor}; define it before *{anchor}")
        anchored = self._anchors[anchor]
        if anchored is None:
            raise scalars.NotReadable(f"cannot use *{anchor} inside &{anchor}, because it would contain itself")
        self._nodes += 1 + anchored.nodes
        self._characters += anchored.characters
        self._aliased_nodes += anchored.nodes
        self._aliased_characters += anchored.characters
        if self._aliases_too_much():
            raise scalars.NotReadable("document contains excessive aliasing; write out the aliased parts")
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
        if self._aliased_nodes <= _MIN_ALIASES or self._nodes <= _MIN_NODES:
            return False
        fraction = min(max((self._nodes - _SMALL_NODES) / (_LARGE_NODES - _SMALL_NODES), 0.0), 1.0)
        return self._aliased_nodes / self._nodes > _SMALL_SHARE + fraction * (_LARGE_SHARE - _SMALL_SHARE)

    def _name_entry(self, key: str) -> None:
        frame = self._stack[-1]
        # Duplicate keys are an error, unlike in Go (decision 4). Keys of a merge may be overridden.
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
        # The first item of a list has priority, so apply the last one first. Go does not merge an alias of a list.
        parts = value[::-1] if isinstance(value, list) and not from_alias else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise scalars.NotReadable("cannot merge (<<): expected a mapping or a list of mappings")
        for part in parts:
            frame.merged.update(part.keys() - (frame.value.keys() - frame.merged))
            frame.value.update(part)

    def _path(self) -> FieldPath:
        parts = [
            str(len(frame.value)) if frame.key is _ITEM else frame.key if isinstance(frame.key, str) else ""
            for frame in self._stack[:_SHOWN_DEPTH]
        ]
        return tuple(filter(None, parts))


@dataclass(slots=True)
class _OpenCollection:
    """An open collection: its path and the entry being read."""

    path: FieldPath
    next_item: int | None  # None in a mapping
    key: str | None = None


def _fields(text: str) -> Iterator[tuple[FieldPath, int]]:
    """Yield every field of the first document with the line of its key or list item."""
    stack: list[_OpenCollection] = []
    for event in _events(text):
        match event:
            case yaml.DocumentEndEvent():
                return
            case yaml.CollectionEndEvent():
                stack.pop()
            case yaml.NodeEvent():
                path: FieldPath = ()
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
                    stack.append(_OpenCollection(path, 0 if isinstance(event, yaml.SequenceStartEvent) else None))
