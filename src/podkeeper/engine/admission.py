"""Admission: what the pods of this node hold of it, so that each new one can be judged without looking at the rest.

In: pods as they are admitted, change and leave (`add`, `forget`). Out: `admit`, the verdict on a new pod. The verdict
itself is `rules.admit`'s; this shell keeps the sums.

Nobody tells this room when a pod has ended by itself, so the sums may count pods that are over. That errs on one
side only: who fits beside them fits. Before anybody is turned away, those that are over are struck out, once, and the
question is asked again; so admitting costs the size of one pod, and only a refusal that of all. The Go ancestors are
`canAdmitPod` and `filterOutInactivePods` in pkg/kubelet.
"""

from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import Node, Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.admit import Enforcement, Preempt, Rejection, admit_beside
from podkeeper.rules.housekeeping import Answers, is_active
from podkeeper.rules.usage import NodeUsage, Share, share_of


@dataclass(frozen=True, slots=True)
class _Held:
    pod: Pod
    share: Share


class Admission:
    """The pods that hold something of the node, and the sum of it."""

    def __init__(
        self,
        *,
        node: Callable[[], Node],
        workers: Answers,
        status: StatusManager,
        enforcement: Enforcement | None = None,
    ) -> None:
        """`enforcement` is what containers can be held to; None: not asked about."""
        self._node = node
        self._enforcement = enforcement
        self._workers = workers
        self._status = status
        self._held: dict[PodUID, _Held] = {}
        self._usage = NodeUsage()

    def __len__(self) -> int:
        return len(self._held)

    def admit(self, pod: Pod) -> Rejection | Preempt | None:
        """Judge a pod, as if it were not counted yet. Changes nothing: `add` it if it is let in."""
        own = self._held.get(_uid(pod))
        if own is not None:
            self._usage.remove(own.share)
        try:
            verdict = self._judge(pod)
            if verdict is not None and self._strike_out_the_ended(spared=_uid(pod)):
                verdict = self._judge(pod)
        finally:
            if own is not None:
                self._usage.add(own.share)
        return verdict

    def add(self, pod: Pod) -> None:
        """Count a pod that is let in; one that is counted already, as it is now."""
        self.forget(_uid(pod))
        held = _Held(pod, share_of(pod))
        self._held[_uid(pod)] = held
        self._usage.add(held.share)

    def update(self, pod: Pod) -> None:
        """Count a changed pod as it is now, if it is counted at all: one that was turned away is not."""
        if _uid(pod) in self._held:
            self.add(pod)

    def forget(self, uid: PodUID) -> None:
        """Count a pod no more; an unknown one is not counted."""
        held = self._held.pop(uid, None)
        if held is not None:
            self._usage.remove(held.share)

    def _judge(self, pod: Pod) -> Rejection | Preempt | None:
        def neighbours() -> list[Pod]:
            return [held.pod for uid, held in self._held.items() if uid != _uid(pod)]

        return admit_beside(pod, self._node(), self._usage, neighbours, self._enforcement)

    def _strike_out_the_ended(self, spared: PodUID) -> bool:
        ended = [uid for uid, held in self._held.items() if uid != spared and not self._is_active(held.pod)]
        for uid in ended:
            self.forget(uid)
        return bool(ended)

    def _is_active(self, pod: Pod) -> bool:
        published = self._status.get_pod_status(_uid(pod))
        return is_active(pod, None if published is None else published.phase, self._workers)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
