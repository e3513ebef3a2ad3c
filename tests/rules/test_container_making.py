"""What a container is made with beside its environment: mounts, names, users; and how patient its pod is."""

from datetime import timedelta

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
    PodSpec,
    ProjectedVolumeSource,
    SecretVolumeSource,
    SecurityContext,
    Volume,
    VolumeMount,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime_calls import Mount
from podkeeper.rules.backoff import DEFAULT_CURVE, MIN_DELAY
from podkeeper.rules.backoff_tuning import BackoffKind, curve_for
from podkeeper.rules.container_events import Reason, normal
from podkeeper.rules.mounts import mounts_of
from podkeeper.rules.naming import (
    container_log_path,
    container_path,
    described,
    hostname_of,
    pod_log_directory,
    uid_of_log_directory,
)
from podkeeper.rules.pull import pull_failure, pulled_text, tagged
from podkeeper.rules.run_as import root_trouble


def pod(name: str = "web", **spec: object) -> Pod:
    base = PodSpec(
        containers=(Container(name="web"),),
        init_containers=(Container(name="setup"),),
        ephemeral_containers=(EphemeralContainer(name="shell"),),
    )
    return Pod(metadata=ObjectMeta(name=name, namespace="shop", uid="uid-1"), spec=replace(base, **spec))


# Mounts.

VOLUMES = {"data": "/host/data"}
ENV = {"POD": "web-1", "UP": "..", "EMPTY": ""}


def mount(**fields: object) -> VolumeMount:
    return replace(VolumeMount(name="data", mount_path="/data"), **fields)


def shown(**fields: object) -> Mount:
    return replace(Mount(container_path="/data", host_path="/host/data", volume="data"), **fields)


MOUNTS = {
    "a volume appears at its path": (mount(), shown()),
    "read-only if it says so": (
        mount(read_only=True), shown(read_only=True)),
    "a path is made absolute": (mount(mount_path="in"), shown(container_path="/in")),
    "a part of a volume": (
        mount(sub_path="a/b"), shown(sub_path="a/b")),
    "a part named by a variable": (
        mount(sub_path_expr="x/$(POD)"), shown(sub_path="x/web-1")),
    "a sub-path is no expression": (
        mount(sub_path="$(POD)"), shown(sub_path="$(POD)")),
    "dots in names are only names": (
        mount(sub_path="..a/b.."), shown(sub_path="..a/b..")),
    "propagation is handed on": (
        mount(mount_propagation="Bidirectional"),
        shown(propagation="Bidirectional")),
    "how deep read-only goes is handed on": (
        mount(read_only=True, recursive_read_only="IfPossible"),
        shown(read_only=True, recursive_read_only="IfPossible")),
    "none is none": (mount(mount_propagation="None"), shown()),
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
def test_what_the_agent_writes_nobody_else_does(volume: Volume) -> None:
    """As in the reference: whatever the mount says, and with a sub-path too."""
    container = Container(name="web", volume_mounts=(mount(), mount(sub_path="a", read_only=False)))
    assert [each.read_only for each in mounts_of(pod(volumes=(volume,)), container, VOLUMES, ENV)] == [True, True]


REFUSED = {
    "a volume that is not there": (
        mount(name="nosuch"), 'cannot find volume "nosuch" to mount into container "web"'),
    "an absolute sub-path": (mount(sub_path="/etc"), "error SubPath `/etc` must not be an absolute path"),
    "a sub-path that leads out": (
        mount(sub_path="a/../../b"), "unable to provision SubPath `a/../../b`: must not contain '..'"),
    "one that a variable leads out": (
        mount(sub_path_expr="$(UP)/x"), "unable to provision SubPath `../x`: must not contain '..'"),
    "a variable without a value": (mount(sub_path_expr="$(EMPTY)/$(NO)"), "missing value for EMPTY, NO"),
    "a propagation nobody knows": (mount(mount_propagation="Sideways"), 'invalid MountPropagation mode: "Sideways"'),
}  # fmt: skip


@pytest.mark.parametrize("given, message", REFUSED.values(), ids=REFUSED.keys())
def test_refused_mount(given: VolumeMount, message: str) -> None:
    with pytest.raises(NotConfigurable) as caught:
        mounts_of(pod(), Container(name="web", volume_mounts=(given,)), VOLUMES, ENV)
    assert str(caught.value) == message


# Names.


def test_names_that_others_know() -> None:
    assert described(pod()) == "web_shop(uid-1)"
    assert pod_log_directory("/var/log/pods", pod()) == "/var/log/pods/shop_web_uid-1"
    assert container_log_path("web", 3) == "web/3.log"
    assert [uid_of_log_directory(name) for name in ("shop_web_uid-1", "uid-1")] == ["uid-1", "uid-1"]
    assert [container_path(pod(), name) for name in ("web", "setup", "shell", "gone")] == [
        "spec.containers{web}",
        "spec.initContainers{setup}",
        "spec.ephemeralContainers{shell}",
        "implicitly required container gone",
    ]


LONG = "a" * 60 + "--" + "b" * 10

HOSTNAMES = {
    "the pod's name": (pod(), "web"),
    "the host name of the spec": (pod(hostname="shop-1"), "shop-1"),
    "the one that overrides all": (pod(hostname="shop-1", hostname_override="other.example"), "other.example"),
    "a long one is cut and does not end in a sign": (pod(LONG), "a" * 60 + "--b"),
    "nor when it is cut at one": (pod("a" * 62 + "-b"), "a" * 62),
    "the full name if the spec asks for it": (
        pod(hostname="one", subdomain="db", set_hostname_as_fqdn=True), "one.db.shop.svc.cluster.local"),
    "without a subdomain there is no full name": (pod(set_hostname_as_fqdn=True), "web"),
    "a subdomain alone changes nothing": (pod(subdomain="db"), "web"),
    "none in the node's network": (pod(host_network=True), ""),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", HOSTNAMES.values(), ids=HOSTNAMES.keys())
def test_hostname(given: Pod, expected: str) -> None:
    assert hostname_of(given, "cluster.local") == expected


def test_a_full_name_that_no_kernel_holds_is_refused() -> None:
    with pytest.raises(NotConfigurable, match="too long"):
        hostname_of(pod("a" * 50, subdomain="db", set_hostname_as_fqdn=True), "cluster.local")


def test_an_id_never_stands_in_an_event() -> None:
    event = normal(pod(), "web", Reason.KILLING, "cannot stop c0ffee", "c0ffee")
    assert (event.message, event.container_path, event.uid) == ("cannot stop web", "spec.containers{web}", "uid-1")


# Users.

NON_ROOT = SecurityContext(run_as_non_root=True)

USERS = {
    # container's context, pod's context, image's user -> what is wrong
    "nobody forbids root": (None, None, "", None),
    "an image that says nothing runs as root": (NON_ROOT, None, "", "image will run as root"),
    "an image that says root": (NON_ROOT, None, "0:0", "image will run as root"),
    "an image that says another": (NON_ROOT, None, "1000:1000", None),
    "a name says nothing": (NON_ROOT, None, "nginx", "image has non-numeric user (nginx)"),
    "the spec's user goes before the image's": (replace(NON_ROOT, run_as_user=7), None, "0", None),
    "and may be wrong": (replace(NON_ROOT, run_as_user=0), None, "7", "runAsUser breaks non-root policy"),
    "the pod may forbid it too": (None, PodSecurityContext(run_as_non_root=True), "", "image will run as root"),
    "the container may allow it": (
        SecurityContext(run_as_non_root=False), PodSecurityContext(run_as_non_root=True), "", None),
    "the pod's user counts": (NON_ROOT, PodSecurityContext(run_as_user=0), "7", "runAsUser breaks non-root policy"),
    "the container's user goes before it": (
        replace(NON_ROOT, run_as_user=7), PodSecurityContext(run_as_user=0), "", None),
}  # fmt: skip


@pytest.mark.parametrize("own, shared, user, expected", USERS.values(), ids=USERS.keys())
def test_root(own: SecurityContext | None, shared: PodSecurityContext | None, user: str, expected: str | None) -> None:
    trouble = root_trouble(pod(security_context=shared), Container(name="web", security_context=own), user)
    assert trouble is None if expected is None else trouble is not None and expected in trouble


# Images.


def test_an_image_without_a_tag_means_latest() -> None:
    digest = "busybox@sha256:" + "0" * 64
    names = ("busybox", "busybox:1", "host:5000/busybox", digest, "UPPER//bad")
    assert [tagged(name) for name in names] == [
        "busybox:latest", "busybox:1", "host:5000/busybox:latest", digest, None,
    ]  # fmt: skip


def test_known_causes_of_failed_pulls_are_told_in_words() -> None:
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


def test_durations_of_pulls_are_told_in_milliseconds() -> None:
    assert pulled_text("app:1", 1.2345, 61.5, 7) == (
        'Successfully pulled image "app:1" in 1.234s (1m1.5s including waiting). Image size: 7 bytes.'
    )


# Patience.

CURVES = {
    # annotations -> initial, maximum
    "nothing said": ({}, 10, 300),
    "a shorter beginning": ({"podkeeper.io/restart-backoff-initial": "2s"}, 2, 300),
    "a lower end takes the beginning down": ({"podkeeper.io/restart-backoff-maximum": "5s"}, 5, 5),
    "both": ({"podkeeper.io/restart-backoff-initial": "1m", "podkeeper.io/restart-backoff-maximum": "1h"}, 60, 3600),
    "never under the floor": ({"podkeeper.io/restart-backoff-initial": "1ms"}, MIN_DELAY.total_seconds(), 300),
    "never less than nothing": ({"podkeeper.io/restart-backoff-maximum": "-5s"}, 1, 1),
    "never more than a day": ({"podkeeper.io/restart-backoff-maximum": "99999h"}, 10, 86400),
    "no duration counts for nothing": ({"podkeeper.io/restart-backoff-initial": "soon"}, 10, 300),
    "the other kind is another matter": ({"podkeeper.io/pull-backoff-initial": "2s"}, 10, 300),
}  # fmt: skip


@pytest.mark.parametrize("annotations, initial, maximum", CURVES.values(), ids=CURVES.keys())
def test_patience(annotations: dict[str, str], initial: float, maximum: float) -> None:
    patient = replace(pod(), metadata=ObjectMeta(name="web", annotations=annotations))
    curve = curve_for(patient, BackoffKind.RESTART, DEFAULT_CURVE)
    assert (curve.initial, curve.maximum) == (timedelta(seconds=initial), timedelta(seconds=maximum))
