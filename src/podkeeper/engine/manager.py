"""Pod manager: the desired pods of this node, and the mirror pods.

Inputs: pods that were added, changed or removed (`update`, `remove`). Outputs: lookups by UID and by full name. A
mirror pod is not a desired pod and is stored separately. The API has only the UID of the mirror pod, and
`translate_uid` returns the UID of its static pod.

A static pod and its mirror pod are matched by full name, in any order of arrival. As in the kubelet, a translation is
removed with the mirror pod and not with the static pod, because the next static pod may have the same name.
Kubelet counterpart: `basicManager` in pkg/kubelet/pod/pod_manager.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.static.mirror import PodAndMirror, full_name, is_mirror_pod, is_static_pod


@dataclass(frozen=True, slots=True)
class Translations:
    """UIDs of static pods and their mirror pods, in both directions."""

    pod_to_mirror: Mapping[PodUID, PodUID | None]  # of each static pod; None: no mirror pod yet
    mirror_to_pod: Mapping[PodUID, PodUID]


class PodManager:
    def __init__(self) -> None:
        self._pods: dict[PodUID, Pod] = {}
        self._mirrors: dict[PodUID, Pod] = {}
        self._pod_by_name: dict[str, Pod] = {}
        self._mirror_by_name: dict[str, Pod] = {}
        self._translations: dict[PodUID, PodUID] = {}

    def update(self, pod: Pod) -> None:
        """Store a new or changed pod or mirror pod."""
        name, uid = full_name(pod), uid_of(pod)
        if is_mirror_pod(pod):
            self._mirrors[uid] = self._mirror_by_name[name] = pod
            if (static := self._pod_by_name.get(name)) is not None:
                self._translations[uid] = uid_of(static)
        else:
            self._pods[uid] = self._pod_by_name[name] = pod
            if (mirror := self._mirror_by_name.get(name)) is not None:
                self._translations[uid_of(mirror)] = uid

    def remove(self, pod: Pod) -> None:
        """Remove a pod or mirror pod. An unknown one is ignored."""
        name, uid = full_name(pod), uid_of(pod)
        if is_mirror_pod(pod):
            self._mirrors.pop(uid, None)
            self._mirror_by_name.pop(name, None)
            self._translations.pop(uid, None)
        else:
            self._pods.pop(uid, None)
            self._pod_by_name.pop(name, None)

    def pods(self) -> tuple[Pod, ...]:
        """Return the desired pods, without mirror pods."""
        return tuple(self._pods.values())

    def mirrors(self) -> tuple[Pod, ...]:
        """Return the mirror pods, including orphaned ones."""
        return tuple(self._mirrors.values())

    def orphaned_mirror_full_names(self) -> tuple[str, ...]:
        """Return the full names of mirror pods without a desired pod."""
        return tuple(name for name in self._mirror_by_name if name not in self._pod_by_name)

    def pod_by_uid(self, uid: PodUID) -> Pod | None:
        return self._pods.get(uid)

    def pod_by_full_name(self, name: str) -> Pod | None:
        """Return the desired pod with this full name (`name_namespace`)."""
        return self._pod_by_name.get(name)

    def pod_of_mirror(self, mirror: Pod) -> Pod | None:
        return self._pod_by_name.get(full_name(mirror))

    def mirror_of_pod(self, pod: Pod) -> Pod | None:
        return self._mirror_by_name.get(full_name(pod))

    def pair_of(self, either: Pod) -> PodAndMirror:
        """Return a pod and its mirror pod. The argument is either of them."""
        if is_mirror_pod(either):
            return PodAndMirror(self.pod_of_mirror(either), either, was_mirror=True)
        return PodAndMirror(either, self.mirror_of_pod(either), was_mirror=False)

    def translate_uid(self, uid: PodUID) -> PodUID:
        """Return the UID of the static pod for the UID of a mirror pod, and any other UID unchanged."""
        return self._translations.get(uid, uid)

    def translations(self) -> Translations:
        """Return all UIDs that `translate_uid` changes, and the static pods without a mirror pod."""
        pod_to_mirror: dict[PodUID, PodUID | None] = {
            uid: None for uid, pod in self._pods.items() if is_static_pod(pod)
        }
        pod_to_mirror.update((pod, mirror) for mirror, pod in self._translations.items())
        return Translations(pod_to_mirror, dict(self._translations))
