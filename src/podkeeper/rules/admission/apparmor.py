"""AppArmor: the requested profile, and whether the node can apply it.

Kubelet counterpart: pkg/security/apparmor.
"""

from typing import Final

from podkeeper.model.k8s.core import AppArmorProfile, Container, EphemeralContainer, Pod
from podkeeper.rules.container.of_pod import all_containers

UNCONFINED: Final = "unconfined"
RUNTIME_DEFAULT: Final = "runtime/default"
LOCALHOST: Final = "localhost/"
_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"


def apparmor_profile_of(pod: Pod, container: Container | EphemeralContainer) -> AppArmorProfile | None:
    """Return the profile from the container's field, else the deprecated annotation, else the pod's field."""
    own, shared = container.security_context, pod.spec.security_context
    if own is not None and own.app_armor_profile is not None:
        return own.app_armor_profile
    # The API server copies annotations into fields, but static pods do not pass through it.
    match (pod.metadata.annotations or {}).get(f"{_ANNOTATION}{container.name}"):
        case "runtime/default":
            return AppArmorProfile(type="RuntimeDefault")
        case "unconfined":
            return AppArmorProfile(type="Unconfined")
        case str(text) if text.startswith(LOCALHOST):
            return AppArmorProfile(type="Localhost", localhost_profile=text.removeprefix(LOCALHOST))
    return None if shared is None else shared.app_armor_profile


def apparmor_error(pod: Pod, *, enabled: bool) -> str | None:
    """Return why the node cannot apply the pod's profiles, None if it can. `enabled`: the node has AppArmor."""
    if not _is_required(pod):
        return None
    if not enabled:
        return "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    for container in all_containers(pod):
        profile = apparmor_profile_of(pod, container)
        if profile is not None and profile.type == "Localhost" and not (profile.localhost_profile or "").strip():
            return f'Cannot enforce AppArmor: invalid empty AppArmor profile name of container "{container.name}"'
    return None


def _is_required(pod: Pod) -> bool:
    """Return whether a pod names any profile except unconfined, even one that no container uses."""
    fields = (pod.spec.security_context, *(each.security_context for each in all_containers(pod)))
    profiles = (None if each is None else each.app_armor_profile for each in fields)
    if any(profile is not None and profile.type != "Unconfined" for profile in profiles):
        return True
    annotations = (text for key, text in (pod.metadata.annotations or {}).items() if key.startswith(_ANNOTATION))
    return any(text != UNCONFINED for text in annotations)
