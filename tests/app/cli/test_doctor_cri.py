"""Findings of `podkeeper doctor` about container runtimes, with hints."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from podkeeper.app.cli import main
from podkeeper.app.cli.doctor_cri import configuration_findings, runtime_findings
from podkeeper.app.cli.doctor_findings import Mark
from podkeeper.runtimes.cri.runtime_info import EventStreamKind, RuntimeInfo
from tests.app.cri_thread import cri_served_in_thread
from tests.runtimes.cri.fake_server import FakeCri

HEALTHY = RuntimeInfo(cgroup_driver="cgroupfs", sandbox_image="pause:1")

SLICES = RuntimeInfo(cgroup_driver="systemd")

CASES: dict[str, tuple[RuntimeInfo, EventStreamKind, bool, str, str]] = {
    "all is well": (HEALTHY, EventStreamKind.CRI, True, "", ""),
    "events from containerd's own stream": (HEALTHY, EventStreamKind.CONTAINERD, True, "", ""),
    "no event stream": (HEALTHY, EventStreamKind.NONE, True, "pod events", "CRI-O 1.26"),
    "a runtime that does not report its cgroup driver": (RuntimeInfo(), EventStreamKind.CRI, True, "", ""),
    "the systemd driver without systemd": (SLICES, EventStreamKind.CRI, True, "cgroup driver", "SystemdCgroup = false"),
    "no sandbox image": (HEALTHY, EventStreamKind.CRI, False, "sandboxes", "images import"),
    "no network": (
        RuntimeInfo(network_problem="cni plugin not initialized", network_directory="/etc/my-cni"),
        EventStreamKind.CRI, True, "pod network", "/etc/my-cni/10-pods.conflist"),
}  # fmt: skip


@pytest.mark.parametrize("own, news, has_image, what, hint", CASES.values(), ids=CASES.keys())
def test_a_problem_has_a_hint(own: RuntimeInfo, news: EventStreamKind, has_image: bool, what: str, hint: str) -> None:
    weak = [
        each for each in configuration_findings(own, news, has_sandbox_image=has_image) if each.mark is not Mark.GOOD
    ]
    assert [each.what for each in weak] == ([what] if what else [])
    assert hint in " ".join(hint for each in weak for hint in each.hints)


def test_the_version_of_systemd_is_shown() -> None:
    found = {
        each.what: each
        for each in configuration_findings(SLICES, EventStreamKind.CRI, has_sandbox_image=True, systemd=252)
    }
    assert found["cgroup driver"].mark is Mark.GOOD
    assert found["cgroup driver"].found == "systemd 252 (slices)"


def test_plugins_in_another_directory_are_found(tmp_path: Path) -> None:
    own = RuntimeInfo(network_problem="no network config found", plugin_directory=str(tmp_path))
    (finding, *_) = configuration_findings(own, EventStreamKind.CRI, has_sandbox_image=True)
    assert any("containernetworking-plugins" in hint or "set bin_dir" in hint for hint in finding.hints)
    (tmp_path / "bridge").write_text("")
    (finding, *_) = configuration_findings(own, EventStreamKind.CRI, has_sandbox_image=True)
    assert not any("containernetworking-plugins" in hint or "set bin_dir" in hint for hint in finding.hints)


def test_name_and_version_of_the_runtime_are_shown() -> None:
    with cri_served_in_thread(FakeCri()) as path:
        result = CliRunner().invoke(main, ["doctor", "--runtime-endpoint", f"unix://{path}"])
    assert result.exit_code == 0
    assert f"fakerd 1.2.3 answers on {path}" in result.output
    assert "each pod has its own IP address" in result.output
    assert "no event stream" in result.output


def test_a_missing_runtime_is_not_fatal(tmp_path: Path) -> None:
    (finding,) = runtime_findings(str(tmp_path / "none.sock"))
    assert finding.mark is Mark.WEAK
    assert "the socket does not exist" in finding.found
    (finding,) = runtime_findings("tcp://1.2.3.4:5")
    assert "such as unix:///run/containerd/containerd.sock" in finding.found
