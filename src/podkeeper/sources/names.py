"""Which pod somebody means: a text comes in, with the pods there are; the one that is meant goes out.

A pod may be called by its name, by `namespace/name`, or by its UID. A pod from a manifest has the node's name behind
its own (`web` became `web-node1`); it may be called by its plain name too. A name is taken by the letter first: a
plain name only counts when no pod has it for its own. Whatever fits more than one pod is answered with all of them,
never with a guess.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.mirror import is_mirror_pod, is_static_pod

_MOST_SHOWN: Final = 10


def plain_name(pod: Pod) -> str:
    """A pod's name as its manifest has it: that of a static pod, without the node's name behind it."""
    name = pod.metadata.name or ""
    return name.removesuffix(f"-{(pod.spec.node_name or '').lower()}") if is_static_pod(pod) else name


def find_pod(text: str, pods: Iterable[Pod]) -> Pod:
    """The pod that a person means. Raises BadInput when there is none, or more than one.

    Of two pods of one name (one is being replaced) the later one is meant.
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
            right = ", ".join(sorted(map(_called, found))[:_MOST_SHOWN])
            raise BadInput(
                Problem(f"cannot tell which pod {text!r} is: {len(found)} have that name; say one of: {right}")
            )
    raise BadInput(Problem(_not_found(text, name, tuple(known.values()))))


def _called(pod: Pod) -> str:
    return f"{pod.metadata.namespace or ''}/{pod.metadata.name or ''}"


def _not_found(text: str, name: str, pods: Sequence[Pod]) -> str:
    if not pods:
        return f"cannot find a pod {text!r}: there are no pods"
    by_name = {plain_name(pod): pod for pod in pods} | {pod.metadata.name or "": pod for pod in pods}
    if similar := get_close_matches(name, by_name, n=1):
        return f"cannot find a pod {text!r}; did you mean {_called(by_name[similar[0]])}?"
    shown = sorted(map(_called, pods))
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return f"cannot find a pod {text!r}; there are: {', '.join(shown[:_MOST_SHOWN])}{more}"
