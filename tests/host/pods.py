"""Small pods of each QoS class, for tests of cgroups."""

import uuid

from podkeeper.model.k8s.core import Pod, ResourceRequirements
from podkeeper.model.wire import QuantityLike
from podkeeper.testing.build import container, pod

Resources = dict[str, QuantityLike]


def pod_with(requests: Resources | None = None, limits: Resources | None = None, uid: str | None = None) -> Pod:
    """Return a pod with these resources, and with a new UID by default."""
    resources = ResourceRequirements(requests=requests or {}, limits=limits or {})
    return pod("web", container("web", resources=resources), uid=str(uuid.uuid4()) if uid is None else uid)


BEST_EFFORT = pod_with()
BURSTABLE = pod_with({"cpu": "250m"}, {"memory": "64Mi"})
GUARANTEED = pod_with({"cpu": "500m", "memory": "64Mi"}, {"cpu": "500m", "memory": "64Mi"})
