"""How long a pod may take to end, and how long whoever killed it waits for that.

In: what the API, the kill and the spec say about a grace period, and what is already agreed. Out: the
seconds that count. The worker asks each time somebody wants a pod to end; a container's own share of
the time is `rules.container_grace`.

A grace only ever shrinks, with one quirk kept from the reference: an explicit 0 counts as 1 s, but it
reads as "nothing said" to whatever is looked at next, which may then raise the value. The Go ancestors
are `calculateEffectiveGracePeriod` and `killPodNow` in pkg/kubelet/pod_workers.go.
"""

from dataclasses import dataclass

MIN_GRACE_SECONDS = 1
MIN_KILL_TIMEOUT_SECONDS = 10  # for the agent and the runtime to talk to each other once the grace is over


@dataclass(frozen=True, slots=True)
class Grace:
    """The grace that counts from now on."""

    seconds: int
    changed: bool  # another value was agreed before: who waits for that one must be woken


def effective_grace(
    agreed_seconds: int | None,
    *,
    deletion_seconds: int | None = None,
    override_seconds: int | None = None,
    spec_seconds: int | None = None,
) -> Grace:
    """Weigh the API's deletion, then the kill's own wish; the spec speaks only when nobody else did.

    `agreed_seconds` is the outcome of the last time, None when the pod was not asked to end before.
    """
    seconds, replaced = agreed_seconds or 0, False
    for wish in (deletion_seconds, override_seconds):
        if wish is not None and (seconds == 0 or wish < seconds):
            seconds, replaced = wish, True
    if not replaced and seconds == 0 and spec_seconds is not None:
        seconds = spec_seconds
    seconds = max(seconds, MIN_GRACE_SECONDS)
    return Grace(seconds, changed=agreed_seconds is not None and seconds != agreed_seconds)


def kill_pod_timeout(override_seconds: int | None, spec_seconds: int | None) -> int:
    """How many seconds a killer waits for the pod to end: half as long again as the grace."""
    grace_seconds = override_seconds if override_seconds is not None else spec_seconds or 0
    return max(grace_seconds + grace_seconds // 2, MIN_KILL_TIMEOUT_SECONDS)
