"""The image settings of a KubeletConfiguration."""

import pytest

from podkeeper.app.image_settings import SUPPORTED_FIELDS, gc_policy_of, limits_of, verification_of
from podkeeper.app.standalone import SUPPORTED_FIELDS as HONOURED_BY_ALL
from podkeeper.engine.bounded_runtime import DEFAULT_CALL_LIMITS
from podkeeper.model.errors import BadInput
from podkeeper.model.kubelet_config import KUBELET_FIELDS, Duration, KubeletConfiguration
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.rules.images.pull_access import DEFAULT_VERIFICATION, Verification, VerificationPolicy

SILENT = KubeletConfiguration()

PULLS = {
    # serialize, parallel -> slots, whether a slow pull keeps its slot
    "no settings: some in parallel":    (None, None, 4, False),
    "serial":                           (True, None, 1, True),
    "serial, set by both fields":       (True, 1, 1, True),
    "a number in parallel":             (None, 7, 7, True),
    "not serial, with a number":        (False, 7, 7, True),
    "not serial, without a number":     (False, None, 1_000_000, True),
}  # fmt: skip


@pytest.mark.parametrize("serial, parallel, slots, strict", PULLS.values(), ids=PULLS.keys())
def test_parallel_pulls(serial: bool | None, parallel: int | None, slots: int, strict: bool) -> None:
    limits = limits_of(KubeletConfiguration(serialize_image_pulls=serial, max_parallel_image_pulls=parallel))
    assert limits.pull_slots == slots
    assert (limits.pull_lease_seconds == limits.pull_seconds) is strict
    assert limits.pull_slow_seconds == DEFAULT_CALL_LIMITS.pull_slow_seconds


def test_garbage_collection_has_the_defaults_of_the_kubelet() -> None:
    assert gc_policy_of(SILENT) == GcPolicy()
    assert verification_of(SILENT) == DEFAULT_VERIFICATION


def test_settings_are_applied() -> None:
    config = KubeletConfiguration(
        image_gc_high_threshold_percent=50,
        image_gc_low_threshold_percent=0,
        image_minimum_gc_age=Duration("30s"),
        image_maximum_gc_age=Duration("12h"),
    )
    assert gc_policy_of(config) == GcPolicy(
        high_percent=50, low_percent=0, min_age_seconds=30, max_age_seconds=12 * 3600
    )
    listed = KubeletConfiguration(
        image_pull_credentials_verification_policy="NeverVerifyAllowlistedImages",
        preloaded_images_verification_allowlist=("reg.test/*", "reg.test/app"),
    )
    assert verification_of(listed) == Verification(VerificationPolicy.NOT_ALLOWLISTED, ("reg.test/*", "reg.test/app"))


WRONG: dict[str, tuple[KubeletConfiguration, str]] = {
    "more than 100 percent": (KubeletConfiguration(image_gc_high_threshold_percent=101), "imageGCHighThresholdPercent"),
    "less than 0 percent": (KubeletConfiguration(image_gc_low_threshold_percent=-1), "imageGCLowThresholdPercent"),
    "a low threshold above the high one": (
        KubeletConfiguration(image_gc_low_threshold_percent=85),
        "imageGCLowThresholdPercent",
    ),
    "a negative minimum age": (KubeletConfiguration(image_minimum_gc_age=Duration("-1s")), "imageMinimumGCAge"),
    "a negative maximum age": (KubeletConfiguration(image_maximum_gc_age=Duration("-1s")), "imageMaximumGCAge"),
    "a maximum age below the minimum age": (
        KubeletConfiguration(image_maximum_gc_age=Duration("2m")),
        "imageMaximumGCAge",
    ),
    "zero parallel pulls": (KubeletConfiguration(max_parallel_image_pulls=0), "maxParallelImagePulls"),
    "several parallel pulls with serial pulls": (
        KubeletConfiguration(serialize_image_pulls=True, max_parallel_image_pulls=2),
        "maxParallelImagePulls",
    ),
    "an unknown policy": (
        KubeletConfiguration(image_pull_credentials_verification_policy="Sometimes"),
        "imagePullCredentialsVerificationPolicy",
    ),
    "an allowlist without its policy": (
        KubeletConfiguration(preloaded_images_verification_allowlist=("a",)),
        "preloadedImagesVerificationAllowlist",
    ),
    "an allowlist with a tag": (
        KubeletConfiguration(
            image_pull_credentials_verification_policy="NeverVerifyAllowlistedImages",
            preloaded_images_verification_allowlist=("a", "b:v1"),
        ),
        "preloadedImagesVerificationAllowlist[1]",
    ),
}


@pytest.mark.parametrize("config, field", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_setting_is_an_error_with_the_field(config: KubeletConfiguration, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        [read(config) for read in (limits_of, gc_policy_of, verification_of)]
    assert field in [problem.field for problem in caught.value.problems]
    assert all(
        problem.message.startswith(("cannot ", "Invalid value: ", "Unsupported value: ", "Forbidden: "))
        for problem in caught.value.problems
    )


def test_supported_fields_exist_in_the_kubelet_and_in_the_user_guide() -> None:
    assert SUPPORTED_FIELDS <= KUBELET_FIELDS
    assert SUPPORTED_FIELDS <= HONOURED_BY_ALL
