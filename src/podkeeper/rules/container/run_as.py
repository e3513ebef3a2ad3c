"""The check of `runAsNonRoot`: whether a container would run as root.

The container's setting has priority over its pod's, and a user in the spec over the image's user.

Kubelet counterpart: `verifyRunAsNonRoot` in pkg/kubelet/kuberuntime.
"""

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.rules.naming import format_pod


def run_as_root_error(pod: Pod, container: Container | EphemeralContainer, image_user: str) -> str | None:
    """Return why a container may not run. `image_user` is a number, a name, or "", which means root."""
    own, shared = container.security_context, pod.spec.security_context
    non_root, user = (
        next((value for value in values if value is not None), None)
        for values in (
            (own and own.run_as_non_root, shared and shared.run_as_non_root),
            (own and own.run_as_user, shared and shared.run_as_user),
        )
    )
    if not non_root:
        return None
    where = f'(pod: "{format_pod(pod)}", container: {container.name})'
    if user is not None:
        return f"container's runAsUser breaks non-root policy {where}" if user == 0 else None
    name = image_user.partition(":")[0]
    if not name or (name.isdecimal() and int(name) == 0):
        return f"container has runAsNonRoot and image will run as root {where}"
    # A name may be mapped to UID 0 inside the image, so the kubelet rejects it as well.
    if not name.isdecimal():
        return (
            f"container has runAsNonRoot and image has non-numeric user ({name}), "
            f"cannot verify user is non-root {where}"
        )
    return None
