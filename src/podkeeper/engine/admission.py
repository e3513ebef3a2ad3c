"""Admission: keep the resource sums of admitted pods, decide about new pods.

In: pods as they are admitted, changed and removed (`add`, `update`, `forget`). Out: `admit`, the decision.
`rules.admission.admit` decides. This module only keeps the sums, so an admission does not iterate over all pods.

This module is not notified when a pod finishes, so the sums may include finished pods until `admit` would reject a
pod. Kubelet counterpart: `canAdmitPod` and `filterOutInactivePods` in pkg/kubelet.
"""

from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import Node, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.admission.admit import Enforcement, Preempt, Rejection, admit
from podkeeper.rules.admission.usage import NodeUsage, PodUsage, usage_of
from podkeeper.rules.housekeeping import WorkerPredicates, is_active


@dataclass(frozen=True, slots=True)
class _AdmittedPod:
    pod: Pod
    share: PodUsage


class Admission:
    """The admitted pods and the sums of their resources."""

    def __init__(
        self,
        *,
        node: Callable[[], Node],
        workers: WorkerPredicates,
        statuses: StatusManager,
        enforcement: Enforcement | None = None,
    ) -> None:
        """`enforcement` describes what the runtime can enforce. None: this check is skipped."""
        self._node = node
        self._enforcement = enforcement
        self._workers = workers
        self._statuses = statuses
        self._admitted: dict[PodUID, _AdmittedPod] = {}
        self._usage = NodeUsage()

    def __len__(self) -> int:
        return len(self._admitted)

    def admit(self, pod: Pod) -> Rejection | Preempt | None:
        """Decide whether to admit a pod.

        Its own earlier version is not counted. The caller must `add` the pod if it is admitted.
        """
        own = self._admitted.get(uid_of(pod))
        if own is not None:
            # The pod must fit beside the others, not beside its own earlier version.
            self._usage.remove(own.share)
        try:
            decision = self._decide(pod)
            # A pod that fits although finished pods are counted is admitted. They leave the sums only before a
            # rejection, because this takes time for each pod of the node.
            if decision is not None and self._remove_finished(except_for=uid_of(pod)):
                decision = self._decide(pod)
        finally:
            if own is not None:
                self._usage.add(own.share)
        return decision

    def add(self, pod: Pod) -> None:
        """Count an admitted pod. Replace its earlier version."""
        self.forget(uid_of(pod))
        admitted = _AdmittedPod(pod, usage_of(pod))
        self._admitted[uid_of(pod)] = admitted
        self._usage.add(admitted.share)

    def update(self, pod: Pod) -> None:
        """Replace the counted version of a pod. Ignore a pod that is not counted, because it was rejected."""
        if uid_of(pod) in self._admitted:
            self.add(pod)

    def forget(self, uid: PodUID) -> None:
        """Stop counting a pod. An unknown pod is ignored."""
        admitted = self._admitted.pop(uid, None)
        if admitted is not None:
            self._usage.remove(admitted.share)

    def _decide(self, pod: Pod) -> Rejection | Preempt | None:
        def other_pods() -> list[Pod]:
            return [admitted.pod for uid, admitted in self._admitted.items() if uid != uid_of(pod)]

        return admit(pod, self._node(), self._usage, other_pods, self._enforcement)

    def _remove_finished(self, except_for: PodUID) -> bool:
        finished = [
            uid for uid, admitted in self._admitted.items() if uid != except_for and not self._is_active(admitted.pod)
        ]
        for uid in finished:
            self.forget(uid)
        return bool(finished)

    def _is_active(self, pod: Pod) -> bool:
        published = self._statuses.get_pod_status(uid_of(pod))
        return is_active(pod, None if published is None else published.phase, self._workers)
