"""Mounts, names and users of containers, image pull texts, and backoff settings."""

from datetime import timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    ConfigMapVolumeSource,
    Container,
    DownwardAPIVolumeSource,
    EphemeralContainer,
    Pod,
    PodSecurityContext,
    ProjectedVolumeSource,
    SecretVolumeSource,
    SecurityContext,
    Volume,
    VolumeMount,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime_calls import Mount
from podkeeper.rules.backoff.table import DEFAULT_CURVE, MIN_DELAY
from podkeeper.rules.backoff.tuning import BackoffKind, curve_for
from podkeeper.rules.container.events import EventReason, normal
from podkeeper.rules.container.mounts import mounts_of
from podkeeper.rules.container.run_as import run_as_root_error
from podkeeper.rules.images.pull import pull_failure, pulled_message, with_default_tag
from podkeeper.rules.naming import (
    container_log_path,
    container_path,
    format_pod,
    hostname_of,
    pod_log_directory,
    uid_of_log_directory,
)
from podkeeper.testing import build

pod = partial(
    build.pod,
    namespace="shop",
    uid="uid-1",
    init=(build.container("setup"),),
    debug=(EphemeralContainer(name="shell"),),
)


# Mounts.

VOLUMES = {"data": "/host/data"}
ENV = {"POD": "web-1", "UP": "..", "EMPTY": ""}


def mount(**fields: object) -> VolumeMount:
    return replace(VolumeMount(name="data", mount_path="/data"), **fields)


def shown(**fields: object) -> Mount:
    return replace(Mount(container_path="/data", host_path="/host/data", volume="data"), **fields)


MOUNTS = {
    "a volume appears at its path": (mount(), shown()),
    "read-only if the mount is": (
        mount(read_only=True), shown(read_only=True)),
    "a path is made absolute": (mount(mount_path="in"), shown(container_path="/in")),
    "a sub-path": (
        mount(sub_path="a/b"), shown(sub_path="a/b")),
    "a sub-path with a variable": (
        mount(sub_path_expr="x/$(POD)"), shown(sub_path="x/web-1")),
    "subPath is not expanded": (
        mount(sub_path="$(POD)"), shown(sub_path="$(POD)")),
    "dots in names are only names": (
        mount(sub_path="..a/b.."), shown(sub_path="..a/b..")),
    "propagation is passed on": (
        mount(mount_propagation="Bidirectional"),
        shown(propagation="Bidirectional")),
    "recursive read-only is passed on": (
        mount(read_only=True, recursive_read_only="IfPossible"),
        shown(read_only=True, recursive_read_only="IfPossible")),
    "propagation None is empty": (mount(mount_propagation="None"), shown()),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", MOUNTS.values(), ids=MOUNTS.keys())
def test_mount(given: VolumeMount, expected: Mount) -> None:
    assert mounts_of(pod(), Container(name="web", volume_mounts=(given,)), VOLUMES, ENV) == (expected,)


WRITTEN_BY_US = {
    "a config map": Volume(name="data", config_map=ConfigMapVolumeSource(name="c")),
    "a secret": Volume(name="data", secret=SecretVolumeSource(secret_name="s")),
    "a projection": Volume(name="data", projected=ProjectedVolumeSource()),
    "the pod's own fields": Volume(name="data", downward_api=DownwardAPIVolumeSource()),
}


@pytest.mark.parametrize("volume", WRITTEN_BY_US.values(), ids=WRITTEN_BY_US.keys())
def test_volumes_written_by_the_agent_are_read_only(volume: Volume) -> None:
    """As in the kubelet, for all mounts, also with a sub-path and with readOnly false."""
    container = Container(name="web", volume_mounts=(mount(), mount(sub_path="a", read_only=False)))
    assert [each.read_only for each in mounts_of(pod(spec={"volumes": (volume,)}), container, VOLUMES, ENV)] == [
        True,
        True,
    ]


REFUSED = {
    "a missing volume": (
        mount(name="nosuch"), 'cannot find volume "nosuch" to mount into container "web"'),
    "an absolute sub-path": (mount(sub_path="/etc"), "error SubPath `/etc` must not be an absolute path"),
    "a sub-path out of the volume": (
        mount(sub_path="a/../../b"), "unable to provision SubPath `a/../../b`: must not contain '..'"),
    "a variable that leads out of the volume": (
        mount(sub_path_expr="$(UP)/x"), "unable to provision SubPath `../x`: must not contain '..'"),
    "a variable without a value": (mount(sub_path_expr="$(EMPTY)/$(NO)"), "missing value for EMPTY, NO"),
    "an unknown propagation": (mount(mount_propagation="Sideways"), 'invalid MountPropagation mode: "Sideways"'),
}  # fmt: skip


@pytest.mark.parametrize("given, message", REFUSED.values(), ids=REFUSED.keys())
def test_refused_mount(given: VolumeMount, message: str) -> None:
    with pytest.raises(NotConfigurable) as caught:
        mounts_of(pod(), Container(name="web", volume_mounts=(given,)), VOLUMES, ENV)
    assert str(caught.value) == message


# Names.


def test_names_that_other_tools_use() -> None:
    assert format_pod(pod()) == "web_shop(uid-1)"
    assert pod_log_directory("/var/log/pods", pod()) == "/var/log/pods/shop_web_uid-1"
    assert container_log_path("web", 3) == "web/3.log"
    assert [uid_of_log_directory(name) for name in ("shop_web_uid-1", "uid-1")] == ["uid-1", "uid-1"]
    assert [container_path(pod(), name) for name in ("app", "setup", "shell", "gone")] == [
        "spec.containers{app}",
        "spec.initContainers{setup}",
        "spec.ephemeralContainers{shell}",
        "implicitly required container gone",
    ]


LONG = "a" * 60 + "--" + "b" * 10

HOSTNAMES = {
    "the pod's name": (pod(), "web"),
    "the hostname of the spec": (pod(spec={"hostname": "shop-1"}), "shop-1"),
    "hostnameOverride": (pod(spec={"hostname": "shop-1", "hostname_override": "other.example"}), "other.example"),
    "a long one is cut without a trailing separator": (pod(LONG), "a" * 60 + "--b"),
    "a long one cut at a separator": (pod("a" * 62 + "-b"), "a" * 62),
    "the FQDN if the spec requests it": (
        pod(spec={"hostname": "one", "subdomain": "db", "set_hostname_as_fqdn": True}),
        "one.db.shop.svc.cluster.local"),
    "no FQDN without a subdomain": (pod(spec={"set_hostname_as_fqdn": True}), "web"),
    "a subdomain alone changes nothing": (pod(spec={"subdomain": "db"}), "web"),
    "none in the host network": (pod(spec={"host_network": True}), ""),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", HOSTNAMES.values(), ids=HOSTNAMES.keys())
def test_hostname(given: Pod, expected: str) -> None:
    assert hostname_of(given, "cluster.local") == expected


def test_an_fqdn_that_is_too_long_for_the_kernel_is_rejected() -> None:
    with pytest.raises(NotConfigurable, match="too long"):
        hostname_of(pod("a" * 50, spec={"subdomain": "db", "set_hostname_as_fqdn": True}), "cluster.local")


def test_events_never_contain_a_container_id() -> None:
    event = normal(pod(), "app", EventReason.KILLING, "cannot stop c0ffee", "c0ffee")
    assert (event.message, event.container_path, event.uid) == ("cannot stop app", "spec.containers{app}", "uid-1")


# Users.

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
    trouble = run_as_root_error(
        pod(spec={"security_context": shared}), Container(name="web", security_context=own), user
    )
    assert trouble is None if expected is None else trouble is not None and expected in trouble


# Images.


def test_an_image_without_a_tag_means_latest() -> None:
    digest = "busybox@sha256:" + "0" * 64
    names = ("busybox", "busybox:1", "host:5000/busybox", digest, "UPPER//bad")
    assert [with_default_tag(name) for name in names] == [
        "busybox:latest", "busybox:1", "host:5000/busybox:latest", digest, None,
    ]  # fmt: skip


def test_known_causes_of_failed_pulls_have_their_own_message() -> None:
    away = pull_failure("app:1", "RegistryUnavailable: try again")
    assert (away.reason, away.message) == (
        "RegistryUnavailable", "image pull failed for app:1 because the registry is unavailable: try again",
    )  # fmt: skip
    unsigned = pull_failure("app:1", "SignatureValidationFailed")
    assert (unsigned.reason, unsigned.message) == (
        "SignatureValidationFailed", "image pull failed for app:1 because the signature validation failed",
    )  # fmt: skip
    other = pull_failure("app:1", "no such host")
    assert (other.reason, other.message) == ("ErrImagePull", "no such host")


def test_durations_of_pulls_are_in_milliseconds() -> None:
    assert pulled_message("app:1", 1.2345, 61.5, 7) == (
        'Successfully pulled image "app:1" in 1.234s (1m1.5s including waiting). Image size: 7 bytes.'
    )


# Patience.

CURVES = {
    # annotations -> initial, maximum
    "defaults": ({}, 10, 300),
    "a shorter initial delay": ({"podkeeper.io/restart-backoff-initial": "2s"}, 2, 300),
    "a lower maximum lowers the initial delay": ({"podkeeper.io/restart-backoff-maximum": "5s"}, 5, 5),
    "both": ({"podkeeper.io/restart-backoff-initial": "1m", "podkeeper.io/restart-backoff-maximum": "1h"}, 60, 3600),
    "never below the minimum": ({"podkeeper.io/restart-backoff-initial": "1ms"}, MIN_DELAY.total_seconds(), 300),
    "never negative": ({"podkeeper.io/restart-backoff-maximum": "-5s"}, 1, 1),
    "never more than a day": ({"podkeeper.io/restart-backoff-maximum": "99999h"}, 10, 86400),
    "a zero duration is ignored": ({"podkeeper.io/restart-backoff-initial": "soon"}, 10, 300),
    "the other kind of backoff is not affected": ({"podkeeper.io/pull-backoff-initial": "2s"}, 10, 300),
}  # fmt: skip


@pytest.mark.parametrize("annotations, initial, maximum", CURVES.values(), ids=CURVES.keys())
def test_backoff_curve(annotations: dict[str, str], initial: float, maximum: float) -> None:
    patient = replace(pod(), metadata=ObjectMeta(name="web", annotations=annotations))
    curve = curve_for(patient, BackoffKind.RESTART, DEFAULT_CURVE)
    assert (curve.initial, curve.maximum) == (timedelta(seconds=initial), timedelta(seconds=maximum))
