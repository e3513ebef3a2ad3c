"""I22: no call is repeated in a storm: neither for one pod nor for the node, whatever goes wrong.

Calls of one operation are counted by minute, for each container, sandbox or other part of a pod. Housekeeping tries
every 2 s to remove each dead container of a pod that is gone. Everything else is retried with backoff, and what is
watched is not polled. The limits are several times what the worst histories show. A loop without any pause would keep
virtual time from passing; this invariant ends such a play.
"""

from collections import Counter

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.records import Asked, Called
from podkeeper.testing.sim.world import World

MOST_PER_OBJECT = 90  # calls of one operation for one part of a pod, in a minute
MOST_OF_NODE = 1200
IMAGES = frozenset({"image", "pull_image", "remove_image"})  # many pods may use one image, so they count for the node
PROBES = frozenset({"exec_sync"})  # as often as a pod's own periods say, which may be several times a second


class Storms:
    """Counts the calls of each pod and of the node, minute by minute."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._minute = 0
        self._counts: Counter[tuple[PodUID, str, str, str]] = Counter()
        world.bus.subscribe(Called, self._count)
        world.bus.subscribe(Asked, self._count)

    def _count(self, call: Called | Asked) -> None:
        minute = int(call.at // 60.0)
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
            self._world.checked("I22")
        if call.operation in PROBES:
            return
        uid = PodUID("") if call.operation in IMAGES else call.uid
        key = uid, call.room, call.operation, _thing_of(call) if uid else ""
        self._counts[key] += 1
        if self._counts[key] > (MOST_PER_OBJECT if uid else MOST_OF_NODE):
            text = f"{call.room}.{call.operation} was called {self._counts[key]} times within a minute"
            self._world.broken("I22", uid, text)


def _thing_of(call: Called | Asked) -> str:
    """The id that a call is about, or else its subject."""
    return call.given[0] if call.given and isinstance(call.given[0], str) else call.subject
