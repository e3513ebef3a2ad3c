"""Image pulls: whether to pull an image, and the messages about it.

    name --with_default_tag--> reference --policy--> inspect --pull_step--> use it, pull it, or give up

Inputs are image names, policies and the runtime's responses. Outputs are the next step, or the failure for the
container's status. `rules.backoff.table` decides the delay between pulls.

Kubelet counterpart: pkg/kubelet/images/image_manager.go.
"""

from enum import Enum, StrEnum
from typing import Final

from podkeeper.model.durations import format_duration
from podkeeper.rules.images.reference import parse_image, pull_policy_for
from podkeeper.rules.status.containers import StartFailure

INVALID_IMAGE_NAME: Final = "InvalidImageName"
IMAGE_INSPECT_ERROR: Final = "ImageInspectError"
IMAGE_NEVER_PULL: Final = "ErrImageNeverPull"
IMAGE_PULL_ERROR: Final = "ErrImagePull"

_KNOWN_CAUSES: Final = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}


class PullPolicy(StrEnum):
    """When an image is pulled."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PullStep(Enum):
    USE = "use"
    PULL = "pull"
    GIVE_UP = "give up"


def policy_of(policy: str | None, image: str) -> PullPolicy:
    """Return the effective policy. If the spec has none, the image's tag decides. An unknown one means IfNotPresent."""
    try:
        return PullPolicy(policy or pull_policy_for(image))
    except ValueError:
        return PullPolicy.IF_NOT_PRESENT


def with_default_tag(image: str) -> str | None:
    """Return the image with its default tag added, None if the reference is invalid."""
    reference = parse_image(image)
    if reference is None:
        return None
    if reference.digest or not reference.tag or image.endswith(f":{reference.tag}"):
        return image
    return f"{image}:{reference.tag}"


def pull_step(policy: PullPolicy, present: bool) -> PullStep:
    """Return the next step for an image. `present`: the node has it."""
    match policy:
        case PullPolicy.ALWAYS:
            return PullStep.PULL
        case PullPolicy.IF_NOT_PRESENT:
            return PullStep.USE if present else PullStep.PULL
        case PullPolicy.NEVER:
            return PullStep.USE if present else PullStep.GIVE_UP


def invalid_name_failure(image: str) -> StartFailure:
    return StartFailure(
        INVALID_IMAGE_NAME,
        f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference format',
    )


def inspect_failure(image: str, error: str) -> StartFailure:
    return StartFailure(IMAGE_INSPECT_ERROR, f'Failed to inspect image "{image}": {error}')


def never_pull_failure(image: str) -> StartFailure:
    return StartFailure(IMAGE_NEVER_PULL, f'Container image "{image}" is not present with pull policy of Never')


def pull_failure(image: str, message: str, reason: str = IMAGE_PULL_ERROR) -> StartFailure:
    """Return the failure of a pull. Runtimes mark known causes with the first word of the message."""
    for cause, words in _KNOWN_CAUSES.items():
        if message.startswith(cause):
            rest = message.removeprefix(cause)
            return StartFailure(cause, f"image pull failed for {image} because {words}{rest}")
    return StartFailure(reason, message)


def already_present_message(image: str) -> str:
    return f'Container image "{image}" already present on machine and can be accessed by the pod'


def pulled_message(image: str, pull_seconds: float, waited_seconds: float, size_bytes: int) -> str:
    """Return the message for a successful pull. The waiting time includes the time until the pull began."""
    return (
        f'Successfully pulled image "{image}" in {_format_seconds(pull_seconds)} '
        f"({_format_seconds(waited_seconds)} including waiting). Image size: {size_bytes} bytes."
    )


def _format_seconds(seconds: float) -> str:
    """Format seconds as Go formats a duration, truncated to milliseconds."""
    return format_duration(int(seconds * 1000) * 1_000_000)
