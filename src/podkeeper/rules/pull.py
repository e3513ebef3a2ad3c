"""Whether an image is pulled, and what is said about it.

    name --tagged--> reference --policy--> look at what there is --step_after_look--> use it, pull it, or give up

Image names, policies and what the runtime answered come in; the next step, or the failure the container's status
shows, goes out. Back-off between pulls is `rules.backoff`. The Go ancestor is pkg/kubelet/images/image_manager.go.
"""

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final

from podkeeper.model.durations import format_duration
from podkeeper.rules.image_reference import parse_image, pull_policy_for
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


class Step(Enum):
    """What to do about an image."""

    USE = "use"
    PULL = "pull"
    GIVE_UP = "give up"


def policy_of(policy: str | None, image: str) -> PullPolicy:
    """The policy that counts; where the spec is silent, or says what nobody knows, the image's tag decides."""
    try:
        return PullPolicy(policy or pull_policy_for(image))
    except ValueError:
        return PullPolicy.IF_NOT_PRESENT


def tagged(image: str) -> str | None:
    """The image with the tag it means when it names none; None when nobody could pull it."""
    reference = parse_image(image)
    if reference is None:
        return None
    if reference.digest or not reference.tag or image.endswith(f":{reference.tag}"):
        return image
    return f"{image}:{reference.tag}"


def step_after_look(policy: PullPolicy, present: bool) -> Step:
    """What to do about an image, given whether the node has it."""
    match policy:
        case PullPolicy.ALWAYS:
            return Step.PULL
        case PullPolicy.IF_NOT_PRESENT:
            return Step.USE if present else Step.PULL
        case PullPolicy.NEVER:
            return Step.USE if present else Step.GIVE_UP


def invalid_name(image: str) -> StartFailure:
    """The failure of an image whose name cannot be read."""
    return StartFailure(
        INVALID_IMAGE_NAME,
        f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference format',
    )


def inspect_failure(image: str, error: str) -> StartFailure:
    """The failure to learn whether the node has an image."""
    return StartFailure(IMAGE_INSPECT_ERROR, f'Failed to inspect image "{image}": {error}')


def never_pulled(image: str) -> StartFailure:
    """The failure of an image that is not there and may not be fetched."""
    return StartFailure(IMAGE_NEVER_PULL, f'Container image "{image}" is not present with pull policy of Never')


def pull_failure(image: str, message: str, reason: str = IMAGE_PULL_ERROR) -> StartFailure:
    """The failure of a pull; runtimes tell known causes by the first word of the message."""
    for cause, words in _KNOWN_CAUSES.items():
        if message.startswith(cause):
            rest = message.removeprefix(cause)
            return StartFailure(cause, f"image pull failed for {image} because {words}{rest}")
    return StartFailure(reason, message)


def together(messages: Sequence[str]) -> str:
    """What several tries said, as one message; each thing once."""
    unique = list(dict.fromkeys(messages))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


def present_text(image: str) -> str:
    """What is said when no pull is needed."""
    return f'Container image "{image}" already present on machine and can be accessed by the pod'


def pulled_text(image: str, pull_seconds: float, waited_seconds: float, size_bytes: int) -> str:
    """What is said after a pull; waiting includes the time until the pull began."""
    return (
        f'Successfully pulled image "{image}" in {_shown(pull_seconds)} ({_shown(waited_seconds)} including waiting). '
        f"Image size: {size_bytes} bytes."
    )


def _shown(seconds: float) -> str:
    """Seconds as Go writes a duration, cut to milliseconds."""
    return format_duration(int(seconds * 1000) * 1_000_000)
