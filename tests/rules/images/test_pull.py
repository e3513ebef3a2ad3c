"""When an image is pulled, and the messages about it."""

import pytest

from podkeeper.rules.images.pull import (
    PullPolicy,
    PullStep,
    already_present_message,
    inspect_failure,
    invalid_name_failure,
    never_pull_failure,
    policy_of,
    pull_failure,
    pull_step,
    pulled_message,
    with_default_tag,
)
from podkeeper.rules.status.containers import StartFailure

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("policy", "image", "expected"),
    [
        ("Always", "a:v1", PullPolicy.ALWAYS),
        ("Never", "a", PullPolicy.NEVER),
        ("IfNotPresent", "a", PullPolicy.IF_NOT_PRESENT),
        (None, "a", PullPolicy.ALWAYS),
        ("", "a:latest", PullPolicy.ALWAYS),
        (None, "a:v1", PullPolicy.IF_NOT_PRESENT),
        (None, f"a@{DIGEST}", PullPolicy.IF_NOT_PRESENT),
        ("Sometimes", "a", PullPolicy.IF_NOT_PRESENT),
    ],
)
def test_policy_of(policy: str | None, image: str, expected: PullPolicy) -> None:
    assert policy_of(policy, image) is expected


@pytest.mark.parametrize(
    ("policy", "if_present", "if_absent"),
    [
        (PullPolicy.ALWAYS, PullStep.PULL, PullStep.PULL),
        (PullPolicy.IF_NOT_PRESENT, PullStep.USE, PullStep.PULL),
        (PullPolicy.NEVER, PullStep.USE, PullStep.GIVE_UP),
    ],
)
def test_pull_step(policy: PullPolicy, if_present: PullStep, if_absent: PullStep) -> None:
    assert (pull_step(policy, True), pull_step(policy, False)) == (if_present, if_absent)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("a", "a:latest"),
        ("reg.test:5000/a", "reg.test:5000/a:latest"),
        ("a:v1", "a:v1"),
        ("a:latest", "a:latest"),
        (f"a@{DIGEST}", f"a@{DIGEST}"),
        (f"a:v1@{DIGEST}", f"a:v1@{DIGEST}"),
        ("A b", None),
        ("UPPER//bad", None),
    ],
)
def test_an_image_without_a_tag_means_latest(image: str, expected: str | None) -> None:
    assert with_default_tag(image) == expected


def test_failures() -> None:
    assert invalid_name_failure("A b") == StartFailure(
        "InvalidImageName",
        'Failed to apply default image tag "A b": couldn\'t parse image name "A b": invalid reference format',
    )
    assert inspect_failure("a", "gone") == StartFailure("ImageInspectError", 'Failed to inspect image "a": gone')
    assert never_pull_failure("a") == StartFailure(
        "ErrImageNeverPull", 'Container image "a" is not present with pull policy of Never'
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no such host", StartFailure("ErrImagePull", "no such host")),
        ("xRegistryUnavailable", StartFailure("ErrImagePull", "xRegistryUnavailable")),
        (
            "RegistryUnavailable: 503",
            StartFailure("RegistryUnavailable", "image pull failed for a because the registry is unavailable: 503"),
        ),
        (
            "RegistryUnavailable: try again",
            StartFailure(
                "RegistryUnavailable", "image pull failed for a because the registry is unavailable: try again"
            ),
        ),
        (
            "SignatureValidationFailed",
            StartFailure(
                "SignatureValidationFailed", "image pull failed for a because the signature validation failed"
            ),
        ),
    ],
)
def test_a_failed_pull(message: str, expected: StartFailure) -> None:
    assert pull_failure("a", message) == expected


def test_a_failed_pull_with_another_reason() -> None:
    assert pull_failure("a", "slow down", "ImagePullBackOff") == StartFailure("ImagePullBackOff", "slow down")


def test_event_messages() -> None:
    assert (
        already_present_message("a") == 'Container image "a" already present on machine and can be accessed by the pod'
    )
    assert pulled_message("a", 1.2349, 61.5, 42) == (
        'Successfully pulled image "a" in 1.234s (1m1.5s including waiting). Image size: 42 bytes.'
    )
    assert pulled_message("app:1", 1.2345, 61.5, 7) == (
        'Successfully pulled image "app:1" in 1.234s (1m1.5s including waiting). Image size: 7 bytes.'
    )
