"""What a kubelet's configuration says about images: how many are pulled at a time, who may use them, when they go.

A `KubeletConfiguration` comes in; limits and policies of the engine go out, or `BadInput` that names each field that
cannot be obeyed. The Go ancestor is pkg/kubelet/apis/config/validation.
"""

from dataclasses import replace
from typing import Final

from podkeeper.engine.guard import USUAL_LIMITS, Limits
from podkeeper.model.durations import seconds_of
from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.kubelet_defaults import with_defaults
from podkeeper.rules.image_access import Policy, Verification, pattern_trouble
from podkeeper.rules.image_gc import GcPolicy

HONOURED: Final = frozenset(
    {
        *("serializeImagePulls", "maxParallelImagePulls", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"),
        *("imageMinimumGCAge", "imageMaximumGCAge"),
        *("imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"),
    }
)
"""The fields that are obeyed here."""

_UNLIMITED: Final = 1_000_000


def limits_of(config: KubeletConfiguration, usual: Limits = USUAL_LIMITS) -> Limits:
    """How many pulls go on at a time. Where the file is silent, some; the reference pulls one after the other then.

    A limit that somebody asked for is strict: a slow pull keeps its place until it ends.
    """
    serial, most = config.serialize_image_pulls, config.max_parallel_image_pulls
    if most is not None and most < 1:
        raise BadInput(Problem(f"cannot be {most}; right would be 1 or more", field="maxParallelImagePulls"))
    if serial and most is not None and most > 1:
        text = f"cannot be {most} while serializeImagePulls is true; right would be 1, or serializeImagePulls: false"
        raise BadInput(Problem(text, field="maxParallelImagePulls"))
    if serial is None and most is None:
        return usual
    slots = 1 if serial else most or _UNLIMITED
    return replace(usual, pull_slots=slots, pull_lease_seconds=usual.pull_seconds)


def gc_policy_of(config: KubeletConfiguration) -> GcPolicy:
    """When images go."""
    complete = with_defaults(config)
    high, low = complete.image_gc_high_threshold_percent or 0, complete.image_gc_low_threshold_percent or 0
    youngest = seconds_of(complete.image_minimum_gc_age or "0s")
    oldest = seconds_of(complete.image_maximum_gc_age or "0s")
    wrong = {
        "imageGCHighThresholdPercent": _trouble_of_percent(high),
        "imageGCLowThresholdPercent": _trouble_of_percent(low)
        or (f"cannot be {low}; right would be less than imageGCHighThresholdPercent, {high}" if low >= high else ""),
        "imageMinimumGCAge": "cannot be negative; right would be 2m" if youngest < 0 else "",
        "imageMaximumGCAge": "cannot be negative; right would be 0s, which means never" if oldest < 0 else "",
    }
    if 0 < oldest <= youngest:
        wrong["imageMaximumGCAge"] = "cannot be that short; right would be more than imageMinimumGCAge"
    _raise(wrong)
    return GcPolicy(high_percent=high, low_percent=low, min_age_seconds=youngest, max_age_seconds=oldest)


def verification_of(config: KubeletConfiguration) -> Verification:
    """Who may use images that are on the node."""
    said, allowlist = config.image_pull_credentials_verification_policy, config.preloaded_images_verification_allowlist
    try:
        policy = Policy(said or Policy.NOT_PRELOADED)
    except ValueError:
        text = f"cannot be {said!r}; right would be one of: {', '.join(Policy)}"
        raise BadInput(Problem(text, field="imagePullCredentialsVerificationPolicy")) from None
    field = "preloadedImagesVerificationAllowlist"
    if allowlist and policy is not Policy.NOT_ALLOWLISTED:
        text = f"cannot be obeyed unless imagePullCredentialsVerificationPolicy is {Policy.NOT_ALLOWLISTED}"
        raise BadInput(Problem(text, field=field))
    _raise({f"{field}[{number}]": pattern_trouble(each) for number, each in enumerate(allowlist or ())})
    return Verification(policy, tuple(allowlist or ()))


def _trouble_of_percent(percent: int) -> str:
    return "" if 0 <= percent <= 100 else f"cannot be {percent}; right would be 0 to 100"


def _raise(wrong: dict[str, str]) -> None:
    problems = [Problem(message, field=name) for name, message in wrong.items() if message]
    if problems:
        raise BadInput(*problems)
