"""The seccomp filter of a container: which profile applies, and Localhost profiles."""

import os
from pathlib import Path

import pytest

from podkeeper.linux.capabilities import bounding_set
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Container, Pod, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.runtimes.process.seccomp_profiles import SeccompFilter, seccomp_filter_of

HELD = bounding_set((), (), False)
DEFAULT, UNCONFINED = SeccompProfile(type="RuntimeDefault"), SeccompProfile(type="Unconfined")
EVERYTHING = b'{"defaultAction": "SCMP_ACT_ALLOW"}'


def filter_of(
    own: SecurityContext | None = None, shared: SeccompProfile | None = None, directory: str = ""
) -> SeccompFilter:
    pod = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(security_context=PodSecurityContext(seccomp_profile=shared)))
    return seccomp_filter_of(pod, Container(name="c", security_context=own), HELD, directory)


def localhost(path: str) -> SecurityContext:
    return SecurityContext(seccomp_profile=SeccompProfile(type="Localhost", localhost_profile=path))


FILTERS = {
    "the default applies without a profile": (None, None, True, False),
    "the pod can require the default profile": (None, DEFAULT, True, True),
    "the container can require the default profile": (SecurityContext(seccomp_profile=DEFAULT), None, True, True),
    "the pod can have no filter": (None, UNCONFINED, False, False),
    "the container's profile overrides the pod's": (
        SecurityContext(seccomp_profile=UNCONFINED), DEFAULT, False, False,
    ),
    "a privileged container has no filter": (SecurityContext(privileged=True), None, False, False),
    "a privileged container can have a filter": (
        SecurityContext(privileged=True, seccomp_profile=DEFAULT), None, True, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("own, shared, has_filter, required", FILTERS.values(), ids=FILTERS.keys())
def test_the_filter_of_a_container(
    own: SecurityContext | None, shared: SeccompProfile | None, has_filter: bool, required: bool
) -> None:
    made = filter_of(own, shared)
    assert (bool(made.program), made.required) == (has_filter, required)


def test_a_changed_localhost_profile_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(EVERYTHING)
    first = filter_of(localhost("mine.json"), directory=str(tmp_path))
    file.write_bytes(EVERYTHING.replace(b"ALLOW", b"ERRNO"))
    os.utime(file, ns=(1, 1))
    assert filter_of(localhost("mine.json"), directory=str(tmp_path)) != first


ERRORS = {
    "absent.json": "cannot load seccomp profile .*/absent.json: .*No such file",
    "../outside.json": "localhostProfile: Invalid value: '../outside.json': must be a relative path without '..'",
    "/etc/passwd": "localhostProfile: Invalid value: '/etc/passwd'",
    "": "localhostProfile: Invalid value: ''",
    "broken.json": "cannot load seccomp profile .*/broken.json: ",
    "odd.json": "cannot load seccomp profile .*/odd.json: .*defaultAction",
}


@pytest.mark.parametrize("path, message", ERRORS.items())
def test_a_bad_localhost_profile_is_refused(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"defaultAction": "SCMP_ACT_DANCE"}')
    with pytest.raises(RuntimeRefused, match=f"^cannot create container c: .*{message}"):
        filter_of(localhost(path), directory=str(tmp_path))
