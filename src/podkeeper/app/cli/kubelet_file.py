"""Read the configuration file of `podkeeper run --config`.

Reports the fields that podkeeper does not support.
"""

from pathlib import Path

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.kubelet_config import KubeletConfiguration, read_kubelet_configuration, unsupported_fields
from podkeeper.model.manifest import Document, read_documents

_IDENTITY = frozenset({"apiVersion", "kind"})


def read_kubelet_file(path: Path, supported: frozenset[str]) -> tuple[KubeletConfiguration, tuple[Problem, ...]]:
    """Return the configuration and its unsupported fields. Raises BadInput with all problems."""
    try:
        documents = read_documents(path.read_bytes(), str(path)).all_valid()
    except OSError as error:
        raise BadInput(Problem(f"cannot read the file: {error.strerror}", file=str(path))) from error
    if len(documents) != 1:
        raise BadInput(Problem(f"expected one document, found {len(documents)}", file=str(path)))
    (document,) = documents
    config = read_kubelet_configuration(document)
    return config, _unsupported_fields(document, supported)


def _unsupported_fields(document: Document, supported: frozenset[str]) -> tuple[Problem, ...]:
    strange = unsupported_fields(document)
    named = {problem.field.partition(".")[0] for problem in (*strange.unsupported, *strange.unknown)}
    rest = (name for name in document.content if name not in _IDENTITY | supported | named)
    return (
        *strange.unknown,
        *strange.unsupported,
        *(document.problem("unsupported by 'podkeeper run', ignored", name) for name in rest),
    )
