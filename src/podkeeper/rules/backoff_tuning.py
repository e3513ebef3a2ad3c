"""Back-off tuned by a pod itself: some crash loops deserve more patience than others, and some less.

A pod's annotations and the node's curve come in; the curve for that pod goes out.

    podkeeper.io/restart-backoff-initial: 2s       podkeeper.io/pull-backoff-initial: 1m
    podkeeper.io/restart-backoff-maximum: 30s      podkeeper.io/pull-backoff-maximum: 1h

No curve waits for less than `rules.backoff.MIN_DELAY`; a text that is no duration counts for nothing. There is no Go
ancestor: the reference has one curve for all.
"""

from datetime import timedelta
from enum import StrEnum

from podkeeper.model.durations import parse_duration
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.backoff import Curve

LONGEST_DELAY = timedelta(days=1)
"""The ceiling: what waits longer is better deleted."""


class BackoffKind(StrEnum):
    """What is tried again."""

    RESTART = "restart"
    PULL = "pull"


def annotation(kind: BackoffKind, end: str) -> str:
    """The name of the annotation for one end of a curve (`initial`, `maximum`)."""
    return f"podkeeper.io/{kind}-backoff-{end}"


def curve_for(pod: Pod, kind: BackoffKind, node_curve: Curve) -> Curve:
    """How the delays of this pod grow."""
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
        return None
