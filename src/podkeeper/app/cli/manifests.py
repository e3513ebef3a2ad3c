"""Read the manifests named on the command line.

Input: files and directories. Output: static pods, other objects, problems and warnings.

The same code as in `podkeeper run` (package `sources`) finds and reads the files, so both report the same problems:
duplicate names, ignored files, unsupported kinds. In addition, this module reports unknown fields as warnings.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.manifest import read_documents, type_of, unknown_fields
from podkeeper.rules.static import FromFile
from podkeeper.sources.contents import Contents, Reader
from podkeeper.sources.local_objects import LocalObject
from podkeeper.sources.shelf import Shelf
from podkeeper.sources.survey import bytes_of, look_once

NODE_NAME_HELP = "Name of the node [default: hostname of this machine]."
STDIN = "-"
_STDIN_SHOWN = "<stdin>"


@dataclass(frozen=True, slots=True)
class Found:
    pods: tuple[Pod, ...]
    others: tuple[LocalObject, ...]  # config maps and secrets
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    files: int


def find(paths: Iterable[Path], node_name: str) -> Found:
    """Read all manifests. An invalid manifest does not affect the others. `-` stands for stdin."""
    reader = Reader(node_name, has_store=True)
    contents: dict[str, Contents] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for path in paths:
        if str(path) == STDIN:
            data = sys.stdin.buffer.read()
            contents[_STDIN_SHOWN] = reader.read(data, FromFile(_STDIN_SHOWN), _STDIN_SHOWN)
            warnings += _strange_fields(data, _STDIN_SHOWN)
            continue
        survey = look_once(str(path), reader)
        problems += survey.problems.values()
        for place, seen in survey.files.items():
            if place not in contents:
                contents[place] = seen.contents
                warnings += _strange_fields_of(place)
    shelved = Shelf().take(contents)
    problems += [problem for place in contents for problem in shelved.problems.get(place, ())]
    return Found(shelved.pods, shelved.objects, tuple(problems), tuple(warnings), len(contents))


def _strange_fields_of(place: str) -> Iterator[Problem]:
    try:
        yield from _strange_fields(bytes_of(place), place)
    except OSError:
        return  # the survey has reported it


def _strange_fields(data: bytes, shown: str) -> Iterator[Problem]:
    """Yield unknown fields, even of documents with other errors, because a misspelt field may be their cause."""
    for document in read_documents(data, shown).documents:
        try:
            yield from unknown_fields(document, type_of(document))
        except BadInput:
            continue  # the reader has reported it
