"""Manifests named on the command line: files and folders in, static pods and problems out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.manifest import Document, decode, read_documents, type_of, unknown_fields
from podkeeper.rules.static import FromFile, References, static_pod_from


@dataclass(slots=True)
class Found:
    """What the manifests hold."""

    pods: list[Pod] = field(default_factory=list)
    others: list[Document] = field(default_factory=list)  # config maps, secrets and the like
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Each file, and the files of each folder in order; dot files in folders are passed over."""
    for path in paths:
        if path.is_dir():
            yield from sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
        else:
            yield path


def find(paths: Iterable[Path], node_name: str) -> Found:
    """Read all manifests; what is wrong in one harms no other."""
    found = Found()
    for path in files_in(paths):
        try:
            reading = read_documents(path.read_bytes(), str(path))
        except OSError as error:
            found.problems.append(Problem(f"cannot read it: {error.strerror}", file=str(path)))
            continue
        found.problems += reading.problems
        for document in reading.documents:
            _sort(document, path, node_name, found)
    return found


def _sort(document: Document, path: Path, node_name: str, found: Found) -> None:
    try:
        wanted = type_of(document)
        if wanted is Pod:
            found.pods.append(static_pod_from(document, FromFile(str(path)), node_name, References.LOCAL_STORE))
        else:
            decode(document, wanted)
            found.others.append(document)
        found.warnings += unknown_fields(document, wanted)
    except BadInput as error:
        found.problems += error.problems
