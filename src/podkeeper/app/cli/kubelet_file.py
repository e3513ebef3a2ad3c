"""A kubelet's configuration file, for `podkeeper run --config`: what it says, and what of it changes nothing."""

from pathlib import Path

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.kubelet_config import KubeletConfiguration, passed_over, read_kubelet_configuration
from podkeeper.model.manifest import Document, read_documents

_IDENTITY = frozenset({"apiVersion", "kind"})


def read_kubelet_file(path: Path, honoured: frozenset[str]) -> tuple[KubeletConfiguration, tuple[Problem, ...]]:
    """The configuration, and every field of it that is not honoured. Raises BadInput with every problem."""
    try:
        documents = read_documents(path.read_bytes(), str(path)).all_sound()
    except OSError as error:
        raise BadInput(Problem(f"cannot read it: {error.strerror}", file=str(path))) from error
    if len(documents) != 1:
        raise BadInput(Problem(f"cannot hold {len(documents)} documents; one would be right", file=str(path)))
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
        *(document.problem("is not honoured by 'podkeeper run'", name) for name in rest),
    )
