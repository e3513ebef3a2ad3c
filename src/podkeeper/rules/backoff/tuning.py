"""Backoff settings in pod annotations.

In: the annotations of a pod and the curve of the node. Out: the curve of the pod.

    podkeeper.io/restart-backoff-initial: 2s       podkeeper.io/pull-backoff-initial: 1m
    podkeeper.io/restart-backoff-maximum: 30s      podkeeper.io/pull-backoff-maximum: 1h

The minimum is `rules.backoff.table.MIN_DELAY`. An invalid duration is ignored. The kubelet has no counterpart: it has
one curve for all pods.
"""

from datetime import timedelta
from enum import StrEnum

from podkeeper.model.durations import parse_duration
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.backoff.table import Curve

LONGEST_DELAY = timedelta(days=1)
"""The maximum of every delay."""


class BackoffKind(StrEnum):
    RESTART = "restart"
    PULL = "pull"


def annotation(kind: BackoffKind, end: str) -> str:
    """Return the annotation for the `initial` or `maximum` delay."""
    return f"podkeeper.io/{kind}-backoff-{end}"


def curve_for(pod: Pod, kind: BackoffKind, node_curve: Curve) -> Curve:
    annotations = pod.metadata.annotations
    if not annotations:
        return node_curve
    initial, maximum = (_delay(annotations.get(annotation(kind, end))) for end in ("initial", "maximum"))
    if initial is None and maximum is None:
        return node_curve
    return node_curve.tuned(initial=initial, maximum=maximum)


def _delay(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return min(timedelta(microseconds=parse_duration(text) // 1000), LONGEST_DELAY)
    except BadInput:
        # An invalid annotation must not keep the pod from running.
        return None
