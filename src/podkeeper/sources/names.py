"""Find a pod by name, `namespace/name` or UID.

A static pod (`web-node1`) can also be found by the name in its manifest (`web`). Full names have priority over names in
manifests. If several pods match, the error lists all of them.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.mirror import is_mirror_pod, is_static_pod

_MOST_SHOWN: Final = 10


def plain_name(pod: Pod) -> str:
    """Return a pod's name as in its manifest, without the node's name."""
    name = pod.metadata.name or ""
    return name.removesuffix(f"-{(pod.spec.node_name or '').lower()}") if is_static_pod(pod) else name


def find_pod(text: str, pods: Iterable[Pod]) -> Pod:
    """Find a pod. Raises BadInput if there is none or more than one.

    Of two pods with the same name (one replaces the other), returns the later one.
    """
    known = {(pod.metadata.namespace or "", pod.metadata.name or ""): pod for pod in pods if not is_mirror_pod(pod)}
    namespace, _, name = text.strip().rpartition("/")
    near = [pod for pod in known.values() if not namespace or pod.metadata.namespace == namespace]
    for found in (
        [pod for pod in near if pod.metadata.name == name],
        [pod for pod in near if plain_name(pod) == name],
        [pod for pod in near if name and pod.metadata.uid == name],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(sorted(map(_called, found))[:_MOST_SHOWN])
            raise BadInput(Problem(f"pod name {text!r} is ambiguous: {len(found)} pods match; use one of: {names}"))
    raise BadInput(Problem(_not_found(text, name, tuple(known.values()))))


def _called(pod: Pod) -> str:
    return f"{pod.metadata.namespace or ''}/{pod.metadata.name or ''}"


def _not_found(text: str, name: str, pods: Sequence[Pod]) -> str:
    if not pods:
        return f"pod {text!r} not found: there are no pods"
    by_name = {plain_name(pod): pod for pod in pods} | {pod.metadata.name or "": pod for pod in pods}
    if similar := get_close_matches(name, by_name, n=1):
        return f"pod {text!r} not found; did you mean {_called(by_name[similar[0]])}?"
    shown = sorted(map(_called, pods))
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return f"pod {text!r} not found; available pods: {', '.join(shown[:_MOST_SHOWN])}{more}"
