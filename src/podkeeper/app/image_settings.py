"""Image settings of the kubelet configuration.

They control parallel pulls, access to images and image garbage collection.

Input: a `KubeletConfiguration`. Output: limits and policies for the engine, or `BadInput` with all invalid fields.
Kubelet counterpart: pkg/kubelet/apis/config/validation.
"""

from dataclasses import replace
from typing import Final

from podkeeper.engine.bounded_runtime import DEFAULT_CALL_LIMITS, CallLimits
from podkeeper.model.durations import seconds_of
from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.kubelet_defaults import with_defaults
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.rules.images.pull_access import Verification, VerificationPolicy, allowlist_error
from podkeeper.rules.validate.names import NOT_NEGATIVE, POSITIVE, unsupported, unwanted, within, wrong

SUPPORTED_FIELDS: Final = frozenset(
    {
        *("serializeImagePulls", "maxParallelImagePulls", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"),
        *("imageMinimumGCAge", "imageMaximumGCAge"),
        *("imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"),
    }
)
"""The fields that this module supports."""

_UNLIMITED: Final = 1_000_000


def limits_of(config: KubeletConfiguration, usual: CallLimits = DEFAULT_CALL_LIMITS) -> CallLimits:
    """Return the limit of parallel image pulls.

    Without settings, several pulls run in parallel. The kubelet's default is one pull at a time. A configured limit is
    strict: a slow pull keeps its slot until it ends.
    """
    serial, parallel = config.serialize_image_pulls, config.max_parallel_image_pulls
    if parallel is not None and parallel < 1:
        raise BadInput(wrong("maxParallelImagePulls", parallel, POSITIVE))
    if serial and parallel is not None and parallel > 1:
        detail = "cannot be larger than 1 unless serializeImagePulls is false"
        raise BadInput(wrong("maxParallelImagePulls", parallel, detail))
    if serial is None and parallel is None:
        return usual
    slots = 1 if serial else parallel or _UNLIMITED
    # With the usual lease, a slow pull would give up its slot, and more pulls than configured would run.
    return replace(usual, pull_slots=slots, pull_lease_seconds=usual.pull_seconds)


def gc_policy_of(config: KubeletConfiguration) -> GcPolicy:
    complete = with_defaults(config)
    high, low = complete.image_gc_high_threshold_percent or 0, complete.image_gc_low_threshold_percent or 0
    youngest = seconds_of(complete.image_minimum_gc_age or "0s")
    oldest = seconds_of(complete.image_maximum_gc_age or "0s")
    problems = [*within("imageGCHighThresholdPercent", high, 0, 100)]
    problems += within("imageGCLowThresholdPercent", low, 0, 100)
    if 0 <= low <= 100 and low >= high:
        detail = f"must be less than imageGCHighThresholdPercent ({high})"
        problems.append(wrong("imageGCLowThresholdPercent", low, detail))
    if youngest < 0:
        problems.append(wrong("imageMinimumGCAge", complete.image_minimum_gc_age, NOT_NEGATIVE))
    if oldest < 0:
        detail = f"{NOT_NEGATIVE} (0s: images are not removed because of their age)"
        problems.append(wrong("imageMaximumGCAge", complete.image_maximum_gc_age, detail))
    if 0 < oldest <= youngest:
        detail = f"must be greater than imageMinimumGCAge ({complete.image_minimum_gc_age})"
        problems.append(wrong("imageMaximumGCAge", complete.image_maximum_gc_age, detail))
    if problems:
        raise BadInput(*problems)
    return GcPolicy(high_percent=high, low_percent=low, min_age_seconds=youngest, max_age_seconds=oldest)


def verification_of(config: KubeletConfiguration) -> Verification:
    """Return the policy for pods that use images already present on the node."""
    name, allowlist = config.image_pull_credentials_verification_policy, config.preloaded_images_verification_allowlist
    try:
        policy = VerificationPolicy(name or VerificationPolicy.NOT_PRELOADED)
    except ValueError:
        raise BadInput(unsupported("imagePullCredentialsVerificationPolicy", name, VerificationPolicy)) from None
    field = "preloadedImagesVerificationAllowlist"
    if allowlist and policy is not VerificationPolicy.NOT_ALLOWLISTED:
        detail = f"may only be set when imagePullCredentialsVerificationPolicy is {VerificationPolicy.NOT_ALLOWLISTED}"
        raise BadInput(unwanted(field, detail))
    errors = ((f"{field}[{number}]", allowlist_error(each)) for number, each in enumerate(allowlist or ()))
    if problems := [Problem(error, field=name) for name, error in errors if error]:
        raise BadInput(*problems)
    return Verification(policy, tuple(allowlist or ()))
