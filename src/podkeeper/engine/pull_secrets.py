"""Read the pull secrets of pods.

In: a pod. Out: the docker configurations of its `imagePullSecrets`, in order, of both types
(`kubernetes.io/dockerconfigjson` and the older `kubernetes.io/dockercfg`). Secrets of other types are ignored. If a
Secret is not available or not valid, an event is recorded and the pull continues without it.

Kubelet counterpart: `getPullSecretsForPod` in pkg/kubelet/kubelet_pods.go and pkg/credentialprovider/secrets. In the
kubelet, one invalid Secret fails the whole pull.
"""

import logging
from collections.abc import Sequence
from typing import Final

from podkeeper.engine.events import EventFunction
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, Secret
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.ports.api import ObjectReader
from podkeeper.rules.images.keyring import PullSecret, is_readable, pull_secret_of
from podkeeper.rules.naming import format_pod

log = logging.getLogger(__name__)

_FAILED: Final = "FailedToRetrieveImagePullSecret"


class PullSecrets:
    """Reads the pull secrets of a pod for each sync that may pull. The kubelet has a cache per pod."""

    def __init__(self, *, objects: ObjectReader | None, record_event: EventFunction) -> None:
        """`objects` reads Secrets. None: there is no store of ConfigMaps and Secrets."""
        self._objects = objects
        self._record_event = record_event

    async def pull_secrets(self, pod: Pod) -> Sequence[PullSecret]:
        """Return the docker configurations for a pod's images. Record an event if a Secret is not usable."""
        found: list[PullSecret] = []
        failed: list[str] = []
        for reference in pod.spec.image_pull_secrets or ():
            name = reference.name or ""
            if not name:
                continue  # the API accepts entries without a name
            secret = await self._secret(pod, name)
            read = None if secret is None else pull_secret_of(secret)
            if read is not None:
                found.append(read)
            if secret is None or (read is not None and not is_readable(read.config)):
                failed.append(name)
        if failed:
            names = ", ".join(failed)
            text = f"Unable to retrieve some image pull secrets ({names}); "
            text += "attempting to pull the image may not succeed."
            self._record_event(PodEvent(EventType.WARNING, _FAILED, text, pod.metadata.uid or ""), pod)
        return found

    async def _secret(self, pod: Pod, name: str) -> Secret | None:
        if self._objects is None:
            return None
        try:
            return await self._objects.get(Secret, name, pod.metadata.namespace or "")
        except TryLater as error:
            log.info(
                "pull secret %s of pod %s is not available, continuing without it: %s", name, format_pod(pod), error
            )
            return None
