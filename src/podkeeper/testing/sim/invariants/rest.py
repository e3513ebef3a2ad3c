"""I6, I9, I10 and I11: once trouble ends, the node comes to rest, and then what is, is what is wanted.

    rest = Rest(world)
    world.calm(); rest.calm_began()          # no trouble any more, and nobody does anything
    ...                                      # some time later
    rest.check()

While it is calm, pods that are being deleted must leave in time. In the end everybody is asked: each pod of the API,
each manifest of a static pod, everything that runs, and what is left of pods that are no more (`rest_pods` judges the
single pods). Dead containers and sandboxes of a pod may stay as long as the pod does.
"""

from collections.abc import Collection, Iterable

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.mirror import full_name, is_mirror_pod
from podkeeper.testing.sim.invariants.pods import Pods, turned_away
from podkeeper.testing.sim.invariants.probe_book import ProbeBook
from podkeeper.testing.sim.invariants.promptness import EVENTS
from podkeeper.testing.sim.invariants.rest_pods import RestingPod
from podkeeper.testing.sim.truth import ContainerLife, SandboxLife
from podkeeper.testing.sim.world import NODE, World

LEAVING_SECONDS = 240.0
"""On top of a pod's grace: a call may hang until its deadline of two minutes, and each who failed rests for a while."""
LONG_CALM_SECONDS = 600.0
"""A node that had less time may still be on its way: only deleted pods are asked then."""

SETTLED_SECONDS = 30.0
"""Containers end when they like: what has just happened need not be known everywhere."""
NEWS = EVENTS | {"watch-gone", "watch-stale", "watch-broken", "stale-lists"}
NOTES = ("status/", "pod/")
"""How the journal's notes of single pods begin."""


class Rest:
    """Judges a node that has been left alone for some time."""

    def __init__(
        self,
        world: World,
        book: ProbeBook | None = None,
        *,
        calm_seconds: float = LONG_CALM_SECONDS,
        settled_seconds: float = SETTLED_SECONDS,
    ) -> None:
        """A calm shorter than `calm_seconds` is none. Pods that changed `settled_seconds` before are not asked.

        `book` is what `watch` returned; without it, a book of its own is kept from now on.
        """
        self._world = world
        self._calm_seconds = calm_seconds
        self._settled_seconds = settled_seconds
        self._book = book or ProbeBook(world, Pods(world))
        self._pods = self._book.pods
        self._calm_from = 0.0
        self._number = 0  # of calms so far
        self._astray = 0  # so often news went astray until the last check

    def calm_began(self) -> None:
        """Note who is being deleted: each has its time to leave."""
        self._number += 1
        self._calm_from = self._world.now()
        for pod in self._pods_of_node():
            if pod.metadata.deletion_timestamp is not None and not pod.metadata.finalizers:
                within = (pod.metadata.deletion_grace_period_seconds or 0) + LEAVING_SECONDS
                self._world.loop.call_later(within, self._judge_leaving, pod, self._number)

    def check(self) -> None:
        """Hold what is against what is wanted. The calm is over with this."""
        self._number += 1
        if self._world.now() - self._calm_from < self._calm_seconds:
            return
        self._check_agent()
        statics = {_uid(pod): pod for pod in (*self._world.files.pods(), *self._world.web.pods())}
        pods = {_uid(pod): pod for pod in self._pods_of_node()}
        self._count_lost_news()
        for uid, pod in pods.items():
            it = RestingPod(self._world, self._book, pod, pod.status)
            self._judge_pod("I11" if it.is_over else "I6", uid, it)
        for name in dict.fromkeys(map(full_name, statics.values())):
            self._check_static(name, [pod for pod in statics.values() if full_name(pod) == name])
        self._check_mirrors(statics.values())
        wanted = {*pods, *statics}
        self._check_runtime(wanted)
        self._check_leftovers(wanted)

    def _count_lost_news(self) -> None:
        """I9 is put to the test by everything that is asked here, if news went astray since the last time."""
        counts = self._world.troubles.counts
        astray = sum(counts[kind] for kind in NEWS)
        if astray > self._astray:
            self._world.checked("I9")
        self._astray = astray

    def _judge(self, invariant: str, uid: str, complaint: str) -> None:
        self._world.checked(invariant)
        if complaint:
            calm = self._world.now() - self._calm_from
            self._world.broken(invariant, uid, f"after {calm:.0f} s of calm {complaint}")

    def _judge_pod(self, invariant: str, uid: PodUID, pod: RestingPod) -> None:
        if pod.changed <= self._world.now() - self._settled_seconds:
            self._judge(invariant, uid, pod.complaint())

    def _pods_of_node(self) -> list[Pod]:
        pods = self._world.api.objects(Pod)
        return [pod for pod in pods if pod.spec.node_name == NODE and not is_mirror_pod(pod)]

    def _judge_leaving(self, pod: Pod, number: int) -> None:
        if number != self._number:
            return  # that calm is over
        found = self._world.api.peek(Pod, pod.metadata.name or "", pod.metadata.namespace or "")
        left = found is None or found.metadata.uid != pod.metadata.uid
        self._judge("I6", _uid(pod), "" if left else f"{full_name(pod)}, which was deleted before, is still there")

    def _check_agent(self) -> None:
        agent = self._world.agent
        if agent is None or not self._world.is_up:
            self._judge("I6", "", "no agent lives")
            return
        troubles = [
            *agent.health(),
            *(f"{call.operation} for {call.about} hangs" for call in agent.runtime.slow_calls()),
        ]
        self._judge("I6", "", "; ".join(troubles))

    # Static pods.

    def _check_static(self, name: str, wanted: list[Pod]) -> None:
        """Of all static pods of a name exactly one is there: of several manifests, the one that came first."""
        there = [pod for pod in wanted if self._world.truth.running(_uid(pod))] or wanted
        if len(there) > 1 and len(wanted) > 1:
            return  # nothing of them runs: which of them should, only the agent knows
        pod = there[0]
        mirror = self._world.api.peek(Pod, pod.metadata.name or "", pod.metadata.namespace or "")
        if mirror is None or not is_mirror_pod(mirror):
            if not turned_away(self._world, _uid(pod)):
                self._judge("I10", _uid(pod), f"static pod {name} has no mirror")
            return
        self._judge_pod("I10", _uid(pod), RestingPod(self._world, self._book, pod, mirror.status, mirror))

    def _check_mirrors(self, statics: Iterable[Pod]) -> None:
        wanted = {full_name(pod) for pod in statics}
        for mirror in filter(is_mirror_pod, self._world.api.objects(Pod)):
            name = full_name(mirror)
            self._judge("I10", _uid(mirror), "" if name in wanted else f"there is a mirror of {name}, but no such pod")

    # What is left.

    def _check_runtime(self, wanted: Collection[PodUID]) -> None:
        """Nothing runs that nobody wants; of static pods of one name only the newest is wanted."""
        for life in self._world.truth.all_running():
            known = self._pods.get(life.uid)
            invariant = "I10" if known is not None and known.static else "I6"
            stray = life.uid not in wanted
            self._judge(invariant, life.uid, f"{life.name} ({life.id}) runs, and nobody wants it" if stray else "")

    def _check_leftovers(self, wanted: Collection[PodUID]) -> None:
        """Nothing is kept for pods that are no more, neither on the node nor in the journal."""
        world = self._world
        shown = {pod.metadata.uid for pod in world.api.objects(Pod)}
        left = [
            *((uid, "volumes are mounted") for uid in world.volumes.mounted_pods()),
            *((uid, "there is a directory") for uid in world.volumes.peek_directories()),
            *((uid, "there is a cgroup") for uid in world.cgroups.peek_pods()),
        ]
        things: list[SandboxLife | ContainerLife] = [*world.truth.sandboxes.values(), *world.truth.containers.values()]
        left += [(it.uid, f"the runtime still has {it.id}") for it in things if it.removed is None]
        for uid, what in sorted(left):
            self._judge("I6", uid, "" if uid in wanted else f"{what} for a pod that is no more")
        for key in sorted(world.journal.load()):
            if not key.startswith(NOTES):
                continue
            uid = PodUID(key.partition("/")[2])
            known = uid in wanted or uid in shown
            self._judge("I6", uid, "" if known else f"the journal still has {key}, whose pod is no more")


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
