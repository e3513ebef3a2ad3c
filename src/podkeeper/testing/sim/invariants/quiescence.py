"""I6, I9, I10 and I11: after all faults, exactly the desired pods run.

    quiescence = Quiescence(world)
    world.end_faults(); quiescence.start_calm()     # no faults and no actions from now on
    ...                                             # some time later
    quiescence.check()

During calm, deleted pods must leave the API in time. At the end, `check` inspects each pod of the API, each static pod,
each running container, and leftovers of removed pods. `quiescent_pods` checks single pods. Dead containers and
sandboxes of a pod may stay as long as the pod exists.
"""

from collections.abc import Collection, Iterable

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.static.mirror import full_name, is_mirror_pod
from podkeeper.testing.sim.ground_truth import ContainerRun, SandboxRun
from podkeeper.testing.sim.invariants.pods import TrackedPods, is_rejected
from podkeeper.testing.sim.invariants.probe_states import ProbeTracker
from podkeeper.testing.sim.invariants.promptness import EVENT_FAULTS
from podkeeper.testing.sim.invariants.quiescent_pods import QuiescentPod
from podkeeper.testing.sim.world import NODE, World

REMOVAL_SECONDS = 240.0
"""In addition to the grace period: a call may hang until its deadline of two minutes, and retries have a backoff."""
LONG_CALM_SECONDS = 600.0
"""After less time the node may not have settled. Then only deleted pods are checked."""

SETTLED_SECONDS = 30.0
"""Containers may end at any time, so very recent changes need not be published yet."""
DELIVERY_FAULTS = EVENT_FAULTS | {"watch-gone", "watch-stale", "watch-broken", "stale-lists"}
JOURNAL_PREFIXES = ("status/", "pod/")
"""Prefixes of the journal's keys for single pods."""


class Quiescence:
    """Checks a node that had no faults and no actions for some time."""

    def __init__(
        self,
        world: World,
        probes: ProbeTracker | None = None,
        *,
        calm_seconds: float = LONG_CALM_SECONDS,
        settled_seconds: float = SETTLED_SECONDS,
    ) -> None:
        """Skip the check after less than `calm_seconds`. Skip pods that changed in the last `settled_seconds`.

        `probes` is the result of `watch`. Without it, probes are tracked from now on.
        """
        self._world = world
        self._calm_seconds = calm_seconds
        self._settled_seconds = settled_seconds
        self._probes = probes or ProbeTracker(world, TrackedPods(world))
        self._pods = self._probes.pods
        self._calm_from = 0.0
        self._number = 0  # of calm phases so far
        self._faults_seen = 0  # delivery faults up to the last check

    def start_calm(self) -> None:
        """Start a calm phase. Each deleted pod must leave the API in time."""
        self._number += 1
        self._calm_from = self._world.now()
        for pod in self._pods_of_node():
            if pod.metadata.deletion_timestamp is not None and not pod.metadata.finalizers:
                within = (pod.metadata.deletion_grace_period_seconds or 0) + REMOVAL_SECONDS
                self._world.loop.call_later(within, self._verify_removal, pod, self._number)

    def check(self) -> None:
        """Compare the node with the desired state. This ends the calm phase."""
        self._number += 1
        if self._world.now() - self._calm_from < self._calm_seconds:
            return
        self._check_agent()
        statics = {uid_of(pod): pod for pod in (*self._world.files.pods(), *self._world.web.pods())}
        pods = {uid_of(pod): pod for pod in self._pods_of_node()}
        self._count_lost_events()
        for uid, pod in pods.items():
            pod_check = QuiescentPod(self._world, self._probes, pod, pod.status)
            self._verify_pod("I11" if pod_check.is_over else "I6", uid, pod_check)
        for name in dict.fromkeys(map(full_name, statics.values())):
            self._check_static(name, [pod for pod in statics.values() if full_name(pod) == name])
        self._check_mirrors(statics.values())
        desired = {*pods, *statics}
        self._check_runtime(desired)
        self._check_leftovers(desired)

    def _count_lost_events(self) -> None:
        """Count a check of I9 if events were lost, late or repeated since the last time."""
        counts = self._world.fault_log.counts
        faults = sum(counts[kind] for kind in DELIVERY_FAULTS)
        if faults > self._faults_seen:
            self._world.checked("I9")
        self._faults_seen = faults

    def _verify(self, invariant: str, uid: str, problem: str) -> None:
        self._world.checked(invariant)
        if problem:
            calm = self._world.now() - self._calm_from
            self._world.violated(invariant, uid, f"after {calm:.0f} s of calm {problem}")

    def _verify_pod(self, invariant: str, uid: PodUID, pod: QuiescentPod) -> None:
        if pod.changed <= self._world.now() - self._settled_seconds:
            self._verify(invariant, uid, pod.problem())

    def _pods_of_node(self) -> list[Pod]:
        pods = self._world.api.objects(Pod)
        return [pod for pod in pods if pod.spec.node_name == NODE and not is_mirror_pod(pod)]

    def _verify_removal(self, pod: Pod, number: int) -> None:
        if number != self._number:
            return  # that calm phase is over
        found = self._world.api.peek(Pod, pod.metadata.name or "", pod.metadata.namespace or "")
        removed = found is None or found.metadata.uid != pod.metadata.uid
        self._verify("I6", uid_of(pod), "" if removed else f"{full_name(pod)}, which was deleted before, still exists")

    def _check_agent(self) -> None:
        agent = self._world.agent
        if agent is None or not self._world.is_up:
            self._verify("I6", "", "no agent runs")
            return
        problems = [
            *agent.health(),
            *(f"{call.operation} for {call.subject} hangs" for call in agent.engine.runtime.slow_calls()),
        ]
        self._verify("I6", "", "; ".join(problems))

    # Static pods.

    def _check_static(self, name: str, desired: list[Pod]) -> None:
        """Check that exactly one static pod of a name runs: of several manifests, the first one."""
        there = [pod for pod in desired if self._world.truth.running(uid_of(pod))] or desired
        if len(there) > 1 and len(desired) > 1:
            return  # none of them runs, and the ground truth does not show which one should
        pod = there[0]
        mirror = self._world.api.peek(Pod, pod.metadata.name or "", pod.metadata.namespace or "")
        if mirror is None or not is_mirror_pod(mirror):
            if not is_rejected(self._world, uid_of(pod)):
                self._verify("I10", uid_of(pod), f"static pod {name} has no mirror pod")
            return
        self._verify_pod("I10", uid_of(pod), QuiescentPod(self._world, self._probes, pod, mirror.status, mirror))

    def _check_mirrors(self, statics: Iterable[Pod]) -> None:
        desired = {full_name(pod) for pod in statics}
        for mirror in filter(is_mirror_pod, self._world.api.objects(Pod)):
            name = full_name(mirror)
            self._verify("I10", uid_of(mirror), "" if name in desired else f"{name} has a mirror pod but no static pod")

    # Leftovers.

    def _check_runtime(self, desired: Collection[PodUID]) -> None:
        """Check that only desired pods run. Of static pods with one name, only the newest is desired."""
        for run in self._world.truth.all_running():
            known = self._pods.get(run.uid)
            invariant = "I10" if known is not None and known.static else "I6"
            stray = run.uid not in desired
            self._verify(invariant, run.uid, f"{run.name} ({run.id}) of an orphaned pod runs" if stray else "")

    def _check_leftovers(self, desired: Collection[PodUID]) -> None:
        """Check that nothing remains of removed pods, neither on the node nor in the journal."""
        world = self._world
        shown = {pod.metadata.uid for pod in world.api.objects(Pod)}
        leftovers = [
            *((uid, "volumes are mounted") for uid in world.volumes.mounted_pods()),
            *((uid, "there is a directory") for uid in world.volumes.peek_directories()),
            *((uid, "there is a cgroup") for uid in world.cgroups.peek_pods()),
        ]
        objects: list[SandboxRun | ContainerRun] = [*world.truth.sandboxes.values(), *world.truth.containers.values()]
        leftovers += [
            (pod_check.uid, f"the runtime still has {pod_check.id}")
            for pod_check in objects
            if pod_check.removed is None
        ]
        for uid, what in sorted(leftovers):
            self._verify("I6", uid, "" if uid in desired else f"{what} for a removed pod")
        for key in sorted(world.journal.load()):
            if not key.startswith(JOURNAL_PREFIXES):
                continue
            uid = PodUID(key.partition("/")[2])
            known = uid in desired or uid in shown
            self._verify("I6", uid, "" if known else f"the journal still has {key} of a removed pod")
