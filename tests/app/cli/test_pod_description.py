"""`podkeeper describe` prints the same text as kubectl for the same objects."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from podkeeper.app.cli.pod_description import describe_pod
from podkeeper.app.cli.tab_stops import tabbed
from podkeeper.model.k8s.core import (
    Container,
    ContainerPort,
    EmptyDirVolumeSource,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    Event,
    EventSource,
    HostPathVolumeSource,
    ObjectFieldSelector,
    ObjectReference,
    Pod,
    PodSpec,
    PodStatus,
    ResourceFieldSelector,
    ResourceRequirements,
    SecretEnvSource,
    Volume,
    VolumeMount,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.manifest import decode, read_documents

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2026, 11, 15, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.yaml")))
def test_a_recorded_pod_has_the_same_description_as_in_kubectl(name: str) -> None:
    (document,) = read_documents((GOLDEN / f"{name}.yaml").read_bytes()).documents
    expected = (GOLDEN / f"{name}.describe.txt").read_text().partition("\nEvents:")[0]
    assert describe_pod(decode(document, Pod), (), NOW).partition("\nEvents:")[0] == expected


def test_events_have_ages_and_the_latest_is_last() -> None:
    def event(reason: str, count: int, first: str, last: str, path: str | None = None) -> Event:
        return Event(
            type="Normal",
            reason=reason,
            message=f"{reason} it\n",
            count=count,
            first_timestamp=f"2026-11-15T{first}Z",
            last_timestamp=f"2026-11-15T{last}Z",
            source=EventSource(component="kubelet"),
            involved_object=ObjectReference(field_path=path),
        )

    events = (
        event("Started", 1, "09:59:00", "09:59:00", "spec.containers{c}"),
        event("Pulled", 3, "09:50:00", "09:58:30"),
    )
    text = describe_pod(Pod(), events, NOW).partition("\nEvents:")[2]
    assert text == (
        "\n"
        "  Type    Reason   Age                From     Message\n"
        "  ----    ------   ----               ----     -------\n"
        "  Normal  Pulled   90s (x3 over 10m)  kubelet  Pulled it\n"
        "  Normal  Started  60s                kubelet  spec.containers{c}: Started it\n"
    )


def test_a_pod_without_events() -> None:
    assert describe_pod(Pod(), (), NOW).endswith("Events:  <none>\n")


def test_fields_that_the_recordings_lack() -> None:
    container = Container(
        name="c",
        image="host",
        ports=(ContainerPort(container_port=80, name="web", protocol="TCP"), ContainerPort(container_port=81)),
        args=("one\ntwo",),
        env=(
            EnvVar(name="LINES", value="a\nb"),
            EnvVar(name="ME", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="metadata.name"))),
        ),
        env_from=(EnvFromSource(prefix="P_", secret_ref=SecretEnvSource(name="s", optional=True)),),
        volume_mounts=(VolumeMount(name="h", mount_path="/h", read_only=True, sub_path="x"),),
    )
    volumes = (
        Volume(name="h", host_path=HostPathVolumeSource(path="/tmp", type="Directory")),
        Volume(name="e", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit="1Mi")),
    )
    pod = Pod(
        metadata=ObjectMeta(
            name="p",
            namespace="default",
            annotations={"long": "x" * 150},
            deletion_timestamp="2026-11-15T09:59:50Z",
            deletion_grace_period_seconds=30,
        ),
        spec=PodSpec(containers=(container,), volumes=volumes),
        status=PodStatus(phase="Running"),
    )
    text = describe_pod(pod, (), NOW)
    for line in (
        "Status:                    Terminating (lasts 10s)",
        "Termination Grace Period:  30s",
        "    Ports:       80/TCP (web), 81/TCP",
        "    Host Ports:  0/TCP (web), 0/TCP",
        "      one",
        "      two",
        "      s  Secret with prefix 'P_'  Optional: true",
        "      LINES:  a",
        "              b",
        "      ME:     p (v1:metadata.name)",
        '      /h from h (ro,path="x")',
        "    Type:          HostPath (bare host directory volume)",
        "    HostPathType:  Directory",
        "    SizeLimit:   1Mi",
        "Node:                      <none>",
    ):
        assert line in text.splitlines()
    assert f"                             {'x' * 138}..." in text.splitlines()


RESOURCES = {
    "a limit": ("limits.memory", "1Mi", "64 (limits.memory)"),
    "a fraction of a core is rounded up": ("limits.cpu", "0", "1 (limits.cpu)"),
    "a request in millicores": ("requests.cpu", "1m", "250 (requests.cpu)"),
    "no limit": ("limits.ephemeral-storage", "0", "0 (limits.ephemeral-storage)"),
}


@pytest.mark.parametrize("resource, divisor, expected", RESOURCES.values(), ids=RESOURCES.keys())
def test_the_value_of_a_resource_field(resource: str, divisor: str, expected: str) -> None:
    selector = ResourceFieldSelector(resource=resource, divisor=divisor)
    container = Container(
        name="c",
        env=(EnvVar(name="X", value_from=EnvVarSource(resource_field_ref=selector)),),
        resources=ResourceRequirements(limits={"cpu": "500m", "memory": "64Mi"}, requests={"cpu": "250m"}),
    )
    assert f"X: {expected}" in squeezed(Pod(spec=PodSpec(containers=(container,))))


def test_a_missing_limit_is_the_nodes_allocatable() -> None:
    source = EnvVarSource(resource_field_ref=ResourceFieldSelector(resource="limits.cpu"))
    pod = Pod(spec=PodSpec(containers=(Container(name="c", env=(EnvVar(name="X", value_from=source),)),)))
    assert "X: node allocatable (limits.cpu)" in squeezed(pod)


def squeezed(pod: Pod) -> list[str]:
    return [" ".join(line.split()) for line in describe_pod(pod, (), NOW).splitlines()]


def test_a_terminating_pod_shows_the_time_that_is_left() -> None:
    pod = Pod(metadata=ObjectMeta(deletion_timestamp="2026-11-15T10:00:20Z"), status=PodStatus(phase="Running"))
    assert "Terminating (killed in 20s)" in describe_pod(pod, (), NOW)


TABS = {
    "cells of neighbours are aligned": (["a:\tx", "long:\ty"], "a:     x\nlong:  y\n"),
    "a line without a tab ends the column": (["a:\tx", "end", "long:\ty"], "a:  x\nend\nlong:  y\n"),
    "nested columns": (["a\tb\tc", "aa\tbb\tc", "a\tc"], "a   b   c\naa  bb  c\na   c\n"),
    "a newline counts as two lines": (["a:\tx\n", "long:\ty"], "a:  x\n\nlong:  y\n"),
}


@pytest.mark.parametrize("lines, expected", TABS.values(), ids=TABS.keys())
def test_tabs_are_elastic(lines: list[str], expected: str) -> None:
    assert tabbed(lines) == expected
