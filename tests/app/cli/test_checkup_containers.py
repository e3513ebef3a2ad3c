"""What `podkeeper doctor` says of container runtimes, and what would help."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from podkeeper.app.cli import main
from podkeeper.app.cli.checkup_containers import container_findings, findings_of
from podkeeper.app.cli.findings import Mark
from podkeeper.runtimes.cri.about import About, News
from tests.app.serving_aside import serving_aside
from tests.runtimes.cri.fake_server import FakeCri

WELL = About(cgroup_driver="cgroupfs", sandbox_image="pause:1")

SLICES = About(cgroup_driver="systemd")

CASES: dict[str, tuple[About, News, bool, str, str]] = {
    "all is well": (WELL, News.CRI, True, "", ""),
    "containerd's own stream will do": (WELL, News.CONTAINERD, True, "", ""),
    "nobody tells what happens": (WELL, News.NONE, True, "pod events", "CRI-O 1.26"),
    "a driver that the runtime keeps to itself": (About(), News.CRI, True, "", ""),
    "cgroups through systemd, and none answers": (SLICES, News.CRI, True, "cgroup driver", "SystemdCgroup = false"),
    "no image for sandboxes": (WELL, News.CRI, False, "sandboxes", "images import"),
    "no network": (
        About(network_trouble="cni plugin not initialized", network_directory="/etc/my-cni"),
        News.CRI, True, "pod network", "/etc/my-cni/10-pods.conflist"),
}  # fmt: skip


@pytest.mark.parametrize("own, news, has_image, what, hint", CASES.values(), ids=CASES.keys())
def test_what_is_wrong_is_said_with_what_would_help(
    own: About, news: News, has_image: bool, what: str, hint: str
) -> None:
    weak = [each for each in findings_of(own, news, has_sandbox_image=has_image) if each.mark is not Mark.GOOD]
    assert [each.what for each in weak] == ([what] if what else [])
    assert hint in " ".join(hint for each in weak for hint in each.hints)


def test_the_systemd_that_makes_cgroups_is_named() -> None:
    found = {each.what: each for each in findings_of(SLICES, News.CRI, has_sandbox_image=True, systemd=252)}
    assert found["cgroup driver"].mark is Mark.GOOD
    assert found["cgroup driver"].found == "systemd 252 (slices)"


def test_plugins_that_lie_elsewhere_are_looked_for(tmp_path: Path) -> None:
    own = About(network_trouble="no network config found", plugin_directory=str(tmp_path))
    (finding, *_) = findings_of(own, News.CRI, has_sandbox_image=True)
    assert any("containernetworking-plugins" in hint or "set bin_dir" in hint for hint in finding.hints)
    (tmp_path / "bridge").write_text("")
    (finding, *_) = findings_of(own, News.CRI, has_sandbox_image=True)
    assert not any("containernetworking-plugins" in hint or "set bin_dir" in hint for hint in finding.hints)


def test_a_runtime_that_answers_is_named() -> None:
    with serving_aside(FakeCri()) as path:
        result = CliRunner().invoke(main, ["doctor", "--runtime-endpoint", f"unix://{path}"])
    assert result.exit_code == 0
    assert f"fakerd 1.2.3 answers on {path}" in result.output
    assert "each pod has its own IP address" in result.output
    assert "no event stream" in result.output


def test_one_that_does_not_is_no_reason_to_despair(tmp_path: Path) -> None:
    (finding,) = container_findings(str(tmp_path / "none.sock"))
    assert finding.mark is Mark.WEAK
    assert "there is no such socket" in finding.found
    (finding,) = container_findings("tcp://1.2.3.4:5")
    assert "such as unix:///run/containerd/containerd.sock" in finding.found
