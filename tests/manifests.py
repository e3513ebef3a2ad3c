"""Manifests of pods as dictionaries, in their wire spelling."""

from collections.abc import Mapping
from typing import Any

HOST_IMAGE = "host"  # the only image of the process runtime


def manifest(
    name: str, *containers: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return the manifest of a pod with a grace period of 1 s, unless `spec` has another one.

    A container without a name is `app`. A container without an image has the image of the process runtime.
    """
    every = [{"name": "app", "image": HOST_IMAGE, **container} for container in containers]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"containers": every, "terminationGracePeriodSeconds": 1, **spec},
    }
