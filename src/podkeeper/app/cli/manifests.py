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
from podkeeper.rules.static.pod import FromFile
from podkeeper.sources.active_objects import ActiveObjects
from podkeeper.sources.local_objects import LocalObject
from podkeeper.sources.manifest_content import ManifestContent, ManifestReader
from podkeeper.sources.manifest_scan import read_bytes, scan_once

NODE_NAME_HELP = "Name of the node [default: hostname of this machine]."
STDIN = "-"
_STDIN_NAME = "<stdin>"


@dataclass(frozen=True, slots=True)
class ManifestSet:
    pods: tuple[Pod, ...]
    others: tuple[LocalObject, ...]  # ConfigMaps and Secrets
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    files: int


def read_manifests(paths: Iterable[Path], node_name: str) -> ManifestSet:
    """Read all manifests. An invalid manifest does not affect the others. `-` stands for stdin."""
    reader = ManifestReader(node_name, has_store=True)
    content: dict[str, ManifestContent] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for path in paths:
        if str(path) == STDIN:
            data = sys.stdin.buffer.read()
            content[_STDIN_NAME] = reader.read(data, FromFile(_STDIN_NAME), _STDIN_NAME)
            warnings += _unknown_fields(data, _STDIN_NAME)
            continue
        scan = scan_once(str(path), reader)
        problems += scan.problems.values()
        for path_name, file in scan.files.items():
            if path_name not in content:
                content[path_name] = file.content
                warnings += _unknown_fields_of(path_name)
    active = ActiveObjects().update(content)
    problems += [problem for path_name in content for problem in active.problems.get(path_name, ())]
    return ManifestSet(active.pods, active.objects, tuple(problems), tuple(warnings), len(content))


def _unknown_fields_of(path_name: str) -> Iterator[Problem]:
    try:
        yield from _unknown_fields(read_bytes(path_name), path_name)
    except OSError:
        return  # the scan has reported it


def _unknown_fields(data: bytes, shown: str) -> Iterator[Problem]:
    """Yield unknown fields, even of documents with other errors, because a misspelled field may have caused them."""
    for document in read_documents(data, shown).documents:
        try:
            yield from unknown_fields(document, type_of(document))
        except BadInput:
            continue  # the reader has reported it
