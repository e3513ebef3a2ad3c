"""The pod manager: the pods this node should have, as the loop last heard of them.

In: pods as they come and go (`update`, `remove`). Out: lookups by UID and by full name. A mirror pod is never
*desired*: it is kept apart, and its UID, which is the only one the API knows for a static pod, translates to the
static pod's.

Pod and mirror find each other by full name, in whichever order they come. As in the reference, a translation is
forgotten with its mirror, not with its static pod: a successor of the same name may be on its way.
The Go ancestor is `basicManager` in pkg/kubelet/pod/pod_manager.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.mirror import Couple, full_name, is_mirror_pod, is_static_pod


@dataclass(frozen=True, slots=True)
class Translations:
    """Both directions between static pods and mirrors."""

    pod_to_mirror: Mapping[PodUID, PodUID | None]  # each static pod; None: it has no mirror yet
    mirror_to_pod: Mapping[PodUID, PodUID]


class PodManager:
    """Desired pods, and apart from them the mirrors."""

    def __init__(self) -> None:
        self._pods: dict[PodUID, Pod] = {}
        self._mirrors: dict[PodUID, Pod] = {}
        self._pod_by_name: dict[str, Pod] = {}
        self._mirror_by_name: dict[str, Pod] = {}
        self._translations: dict[PodUID, PodUID] = {}

    def update(self, pod: Pod) -> None:
        """Take in a new pod or mirror, or a new version of it."""
        name, uid = full_name(pod), _uid(pod)
        if is_mirror_pod(pod):
            self._mirrors[uid] = self._mirror_by_name[name] = pod
            if (static := self._pod_by_name.get(name)) is not None:
                self._translations[uid] = _uid(static)
        else:
            self._pods[uid] = self._pod_by_name[name] = pod
            if (mirror := self._mirror_by_name.get(name)) is not None:
                self._translations[_uid(mirror)] = uid

    def remove(self, pod: Pod) -> None:
        """Forget a pod or mirror, its UID and its full name; an unknown one is forgotten already."""
        name, uid = full_name(pod), _uid(pod)
        if is_mirror_pod(pod):
            self._mirrors.pop(uid, None)
            self._mirror_by_name.pop(name, None)
            self._translations.pop(uid, None)
        else:
            self._pods.pop(uid, None)
            self._pod_by_name.pop(name, None)

    def pods(self) -> tuple[Pod, ...]:
        """The desired pods; mirrors are not among them."""
        return tuple(self._pods.values())

    def mirrors(self) -> tuple[Pod, ...]:
        """The mirrors, whether or not their static pod is known."""
        return tuple(self._mirrors.values())

    def orphaned_mirror_full_names(self) -> tuple[str, ...]:
        """The full names of mirrors that no desired pod has."""
        return tuple(name for name in self._mirror_by_name if name not in self._pod_by_name)

    def pod_by_uid(self, uid: PodUID) -> Pod | None:
        """The desired pod of that UID."""
        return self._pods.get(uid)

    def pod_by_full_name(self, name: str) -> Pod | None:
        """The desired pod of that full name (`name_namespace`)."""
        return self._pod_by_name.get(name)

    def pod_of_mirror(self, mirror: Pod) -> Pod | None:
        """The desired pod that a mirror stands for."""
        return self._pod_by_name.get(full_name(mirror))

    def mirror_of_pod(self, pod: Pod) -> Pod | None:
        """The mirror that stands for a pod."""
        return self._mirror_by_name.get(full_name(pod))

    def couple(self, either: Pod) -> Couple:
        """A pod with its mirror, whichever of the two is at hand."""
        if is_mirror_pod(either):
            return Couple(self.pod_of_mirror(either), either, asked_by_mirror=True)
        return Couple(either, self.mirror_of_pod(either), asked_by_mirror=False)

    def static_pods(self) -> tuple[tuple[Pod, Pod | None], ...]:
        """Each static pod with its mirror, if there is one."""
        return tuple((pod, self.mirror_of_pod(pod)) for pod in self._pods.values() if is_static_pod(pod))

    def translate_uid(self, uid: PodUID) -> PodUID:
        """The UID we know a pod by: for a mirror's UID that of its static pod, any other as it is."""
        return self._translations.get(uid, uid)

    def translations(self) -> Translations:
        """All that `translate_uid` knows, both ways; static pods without a mirror included."""
        pod_to_mirror: dict[PodUID, PodUID | None] = {
            uid: None for uid, pod in self._pods.items() if is_static_pod(pod)
        }
        pod_to_mirror.update((pod, mirror) for mirror, pod in self._translations.items())
        return Translations(pod_to_mirror, dict(self._translations))


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
