"""The shipped descriptors of the CRI messages match our `.proto` files."""

from pathlib import Path

import pytest

from podkeeper.runtimes.cri.schema import containerd_events, cri
from tools.generate_cri import SCHEMA, generated


@pytest.mark.parametrize("name", ["schema.bin", "cri.pyi", "containerd_events.pyi"])
def test_the_shipped_descriptor_matches_the_proto_files(name: str) -> None:
    assert Path(SCHEMA, name).read_bytes() == generated()[name], "run: python -m tools.generate_cri"


def test_a_message_survives_the_wire() -> None:
    sent = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="p", uid="u", attempt=2),
        labels={"a": "b"},
        linux=cri.LinuxPodSandboxConfig(security_context=cri.LinuxSandboxSecurityContext(run_as_user=cri.Int64Value())),
    )
    got = cri.PodSandboxConfig.FromString(sent.SerializeToString())
    assert got == sent
    assert got.linux.security_context.HasField("run_as_user"), "user 0 is not the same as no user"
    assert not got.linux.security_context.HasField("run_as_group")


def test_enums_are_numbers_with_names() -> None:
    assert (cri.SANDBOX_NOTREADY, cri.ContainerState.Name(cri.CONTAINER_EXITED)) == (1, "CONTAINER_EXITED")


def test_unknown_fields_of_newer_runtimes_are_ignored() -> None:
    longer = containerd_events.Envelope(topic="/tasks/exit").SerializeToString() + b"\xba\x3e\x03new"
    assert containerd_events.Envelope.FromString(longer).topic == "/tasks/exit"
