"""Pull secrets: the docker configurations that a pod's images are pulled with.

In: a pod. Out: what is in the Secrets it names, in its order, of both kinds (`kubernetes.io/dockerconfigjson` and the
older `kubernetes.io/dockercfg`). A Secret that cannot be had, or not be read, keeps nothing from being tried: the pod
is told by an event, and the pull goes on without. Secrets of other kinds are passed over. The Go ancestors are
`getPullSecretsForPod` in pkg/kubelet/kubelet_pods.go and pkg/credentialprovider/secrets; there, one Secret that cannot
be read lets the whole pull fail.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, Secret
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import Reader
from podkeeper.rules.keyring import PullSecret, is_whole, pull_secret_of
from podkeeper.rules.naming import described

log = logging.getLogger(__name__)

_FAILED: Final = "FailedToRetrieveImagePullSecret"


class PullSecrets:
    """Reads the pull secrets of pods, anew for each pass that may pull."""

    def __init__(self, *, objects: Reader | None, record: Callable[[PodEvent, Pod | PodRecord | None], None]) -> None:
        """`objects` is where Secrets are read; None: there are none."""
        self._objects = objects
        self._record = record

    def register(self, pod: Pod) -> None:
        """Nothing is kept between passes."""

    def unregister(self, uid: PodUID) -> None:
        """Nothing was kept."""

    async def pull_secrets(self, pod: Pod) -> Sequence[PullSecret]:
        """The configurations to pull a pod's images with; whatever is wrong with others is told."""
        found: list[PullSecret] = []
        failed: list[str] = []
        for reference in pod.spec.image_pull_secrets or ():
            name = reference.name or ""
            if not name:
                continue  # the API lets such entries through
            secret = await self._secret(pod, name)
            read = None if secret is None else pull_secret_of(secret)
            if read is not None:
                found.append(read)
            if secret is None or (read is not None and not is_whole(read.config)):
                failed.append(name)
        if failed:
            names = ", ".join(failed)
            text = f"Unable to retrieve some image pull secrets ({names}); "
            text += "attempting to pull the image may not succeed."
            self._record(PodEvent(EventType.WARNING, _FAILED, text, pod.metadata.uid or ""), pod)
        return found

    async def _secret(self, pod: Pod, name: str) -> Secret | None:
        if self._objects is None:
            return None
        try:
            return await self._objects.get(Secret, name, pod.metadata.namespace or "")
        except TryLater as error:
            log.info("pull secret %s of pod %s cannot be had, going on without: %s", name, described(pod), error)
            return None
