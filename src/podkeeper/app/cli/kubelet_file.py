"""Read the kubelet configuration file for `podkeeper run --config` and list its unsupported fields."""

from pathlib import Path

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.kubelet_config import KubeletConfiguration, passed_over, read_kubelet_configuration
from podkeeper.model.manifest import Document, read_documents

_IDENTITY = frozenset({"apiVersion", "kind"})


def read_kubelet_file(path: Path, honoured: frozenset[str]) -> tuple[KubeletConfiguration, tuple[Problem, ...]]:
    """Return the configuration and its unsupported fields. Raises BadInput with all problems."""
    try:
        documents = read_documents(path.read_bytes(), str(path)).all_sound()
    except OSError as error:
        raise BadInput(Problem(f"cannot read the file: {error.strerror}", file=str(path))) from error
    if len(documents) != 1:
        raise BadInput(Problem(f"expected one document, found {len(documents)}", file=str(path)))
    (document,) = documents
    config = read_kubelet_configuration(document)
    return config, _without_effect(document, honoured)


def _without_effect(document: Document, honoured: frozenset[str]) -> tuple[Problem, ...]:
    strange = passed_over(document)
    named = {problem.field.partition(".")[0] for problem in (*strange.not_obeyed, *strange.unknown)}
    rest = (name for name in document.content if name not in _IDENTITY | honoured | named)
    return (
        *strange.unknown,
        *strange.not_obeyed,
        *(document.problem("unsupported by 'podkeeper run', ignored", name) for name in rest),
    )
