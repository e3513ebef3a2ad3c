"""Small pods of each class, for tests of cgroups."""

import uuid

from podkeeper.model.k8s.core import Container, Pod, PodSpec, ResourceRequirements
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.wire import QuantityLike

Resources = dict[str, QuantityLike]


def pod(requests: Resources | None = None, limits: Resources | None = None, uid: str | None = None) -> Pod:
    resources = ResourceRequirements(requests=requests or {}, limits=limits or {})
    spec = PodSpec(containers=(Container(name="web", image="web", resources=resources),))
    metadata = ObjectMeta(name="web", namespace="default", uid=uid if uid is not None else str(uuid.uuid4()))
    return Pod(metadata=metadata, spec=spec)


def uid_of(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")


BEST_EFFORT = pod()
BURSTABLE = pod({"cpu": "250m"}, {"memory": "64Mi"})
GUARANTEED = pod({"cpu": "500m", "memory": "64Mi"}, {"cpu": "500m", "memory": "64Mi"})
