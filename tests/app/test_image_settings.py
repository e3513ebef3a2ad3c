"""What a kubelet's configuration says about images."""

import pytest

from podkeeper.app.image_settings import HONOURED, gc_policy_of, limits_of, verification_of
from podkeeper.app.standalone import HONOURED as HONOURED_BY_ALL
from podkeeper.engine.guard import USUAL_LIMITS
from podkeeper.model.errors import BadInput
from podkeeper.model.kubelet_config import REFERENCE_FIELDS, Duration, KubeletConfiguration
from podkeeper.rules.image_access import USUAL_VERIFICATION, Policy, Verification
from podkeeper.rules.image_gc import USUAL_POLICY, GcPolicy

SILENT = KubeletConfiguration()

PULLS = {
    # serialize, parallel -> slots, whether a slow pull keeps its place
    "silence means some at a time":     (None, None, 4, False),
    "one after the other":              (True, None, 1, True),
    "one after the other, said twice":  (True, 1, 1, True),
    "so many at a time":                (None, 7, 7, True),
    "not one after the other":          (False, 7, 7, True),
    "as many as there are":             (False, None, 1_000_000, True),
}  # fmt: skip


@pytest.mark.parametrize("serial, parallel, slots, strict", PULLS.values(), ids=PULLS.keys())
def test_pulls_at_a_time(serial: bool | None, parallel: int | None, slots: int, strict: bool) -> None:
    limits = limits_of(KubeletConfiguration(serialize_image_pulls=serial, max_parallel_image_pulls=parallel))
    assert limits.pull_slots == slots
    assert (limits.pull_lease_seconds == limits.pull_seconds) is strict
    assert limits.pull_slow_seconds == USUAL_LIMITS.pull_slow_seconds


def test_garbage_collection_as_the_reference_does_it_where_the_file_is_silent() -> None:
    assert gc_policy_of(SILENT) == USUAL_POLICY
    assert verification_of(SILENT) == USUAL_VERIFICATION


def test_what_the_file_says_counts() -> None:
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
    assert verification_of(listed) == Verification(Policy.NOT_ALLOWLISTED, ("reg.test/*", "reg.test/app"))


WRONG: dict[str, tuple[KubeletConfiguration, str]] = {
    "more than all": (KubeletConfiguration(image_gc_high_threshold_percent=101), "imageGCHighThresholdPercent"),
    "less than none": (KubeletConfiguration(image_gc_low_threshold_percent=-1), "imageGCLowThresholdPercent"),
    "the low one above the high one": (
        KubeletConfiguration(image_gc_low_threshold_percent=85),
        "imageGCLowThresholdPercent",
    ),
    "a negative age": (KubeletConfiguration(image_minimum_gc_age=Duration("-1s")), "imageMinimumGCAge"),
    "another negative age": (KubeletConfiguration(image_maximum_gc_age=Duration("-1s")), "imageMaximumGCAge"),
    "too short an age": (KubeletConfiguration(image_maximum_gc_age=Duration("2m")), "imageMaximumGCAge"),
    "no pulls at all": (KubeletConfiguration(max_parallel_image_pulls=0), "maxParallelImagePulls"),
    "many pulls one after the other": (
        KubeletConfiguration(serialize_image_pulls=True, max_parallel_image_pulls=2),
        "maxParallelImagePulls",
    ),
    "a policy nobody knows": (
        KubeletConfiguration(image_pull_credentials_verification_policy="Sometimes"),
        "imagePullCredentialsVerificationPolicy",
    ),
    "a list without its policy": (
        KubeletConfiguration(preloaded_images_verification_allowlist=("a",)),
        "preloadedImagesVerificationAllowlist",
    ),
    "a list with a tag": (
        KubeletConfiguration(
            image_pull_credentials_verification_policy="NeverVerifyAllowlistedImages",
            preloaded_images_verification_allowlist=("a", "b:v1"),
        ),
        "preloadedImagesVerificationAllowlist[1]",
    ),
}


@pytest.mark.parametrize("config, field", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_obeyed_is_named(config: KubeletConfiguration, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        [read(config) for read in (limits_of, gc_policy_of, verification_of)]
    assert field in [problem.field for problem in caught.value.problems]
    assert all(
        problem.message.startswith(("cannot ", "Invalid value: ", "Unsupported value: ", "Forbidden: "))
        for problem in caught.value.problems
    )


def test_what_is_honoured_is_known_to_the_reference_and_to_users() -> None:
    assert HONOURED <= REFERENCE_FIELDS
    assert HONOURED <= HONOURED_BY_ALL
