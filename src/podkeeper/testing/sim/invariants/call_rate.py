"""I22: no call is repeated too often, neither for one pod nor for the node.

Calls of one operation are counted per minute, for each container, sandbox or other object of a pod. Housekeeping tries
every 2 s to remove each dead container of a removed pod. Everything else is retried with backoff or watched instead of
polled. The limits are several times the worst values that were observed. A loop without any pause would stop virtual
time. This invariant ends such a run.
"""

from collections import Counter

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.records import CallStarted, ReadEnded
from podkeeper.testing.sim.world import World

MAX_PER_OBJECT = 90  # calls of one operation for one object of a pod, in a minute
MAX_PER_NODE = 1200
IMAGES = frozenset({"image", "pull_image", "remove_image"})  # many pods may use one image, so they count for the node
PROBES = frozenset({"exec_sync"})  # as often as the pod's probes require, which may be several times a second


class CallRate:
    """Counts the calls of each pod and of the node, minute by minute."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._minute = 0
        self._counts: Counter[tuple[PodUID, str, str, str]] = Counter()
        world.bus.subscribe(CallStarted, self._count)
        world.bus.subscribe(ReadEnded, self._count)

    def _count(self, call: CallStarted | ReadEnded) -> None:
        minute = int(call.at // 60.0)
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
            self._world.checked("I22")
        if call.operation in PROBES:
            return
        uid = PodUID("") if call.operation in IMAGES else call.uid
        key = uid, call.port, call.operation, _object_of(call) if uid else ""
        self._counts[key] += 1
        if self._counts[key] > (MAX_PER_OBJECT if uid else MAX_PER_NODE):
            text = f"{call.port}.{call.operation} was called {self._counts[key]} times within a minute"
            self._world.violated("I22", uid, text)


def _object_of(call: CallStarted | ReadEnded) -> str:
    """Return the ID that a call is about, or else its subject."""
    return call.args[0] if call.args and isinstance(call.args[0], str) else call.subject
