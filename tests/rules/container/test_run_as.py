"""runAsNonRoot: which users of the spec and of the image are root."""

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, PodSecurityContext, SecurityContext
from podkeeper.rules.container.run_as import run_as_root_error
from podkeeper.testing.build import pod

NON_ROOT = SecurityContext(run_as_non_root=True)

USERS = {
    # container's context, pod's context, image's user -> what is wrong
    "root is allowed": (None, None, "", None),
    "an image without a user runs as root": (NON_ROOT, None, "", "image will run as root"),
    "an image with user 0": (NON_ROOT, None, "0:0", "image will run as root"),
    "an image with another user": (NON_ROOT, None, "1000:1000", None),
    "a user name cannot be verified": (NON_ROOT, None, "nginx", "image has non-numeric user (nginx)"),
    "the spec's user has priority over the image's": (replace(NON_ROOT, run_as_user=7), None, "0", None),
    "the spec's user may be root": (replace(NON_ROOT, run_as_user=0), None, "7", "runAsUser breaks non-root policy"),
    "the pod's runAsNonRoot": (None, PodSecurityContext(run_as_non_root=True), "", "image will run as root"),
    "the container's runAsNonRoot has priority": (
        SecurityContext(run_as_non_root=False), PodSecurityContext(run_as_non_root=True), "", None),
    "the pod's runAsUser": (NON_ROOT, PodSecurityContext(run_as_user=0), "7", "runAsUser breaks non-root policy"),
    "the container's runAsUser has priority": (
        replace(NON_ROOT, run_as_user=7), PodSecurityContext(run_as_user=0), "", None),
}  # fmt: skip


@pytest.mark.parametrize("own, shared, user, expected", USERS.values(), ids=USERS.keys())
def test_run_as_root_error(
    own: SecurityContext | None, shared: PodSecurityContext | None, user: str, expected: str | None
) -> None:
    error = run_as_root_error(pod(spec={"security_context": shared}), Container(name="web", security_context=own), user)
    assert error is None if expected is None else error is not None and expected in error
