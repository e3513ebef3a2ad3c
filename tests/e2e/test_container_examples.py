"""The pods of `examples-containers/`, run on a real containerd with the commands of `docs/containers.md`."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.app.local.client import LocalClient
from tests.e2e.agent_process import agent_with_manifests, until
from tests.e2e.cli_runtimes import cli_runtime
from tests.e2e.runtime_kinds import CONTAINERD
from tests.runtimes.cri.containerd import Containerd

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent.parent
EXAMPLES = REPOSITORY / "examples-containers"
IMAGE = "docker.io/library/busybox:1.36"


@pytest.fixture
def example_image(containerd: Containerd) -> Iterator[None]:
    """Build the image of the examples as `docs/containers.md` describes."""
    images = ["ctr", "-a", containerd.socket, "-n", "k8s.io", "images"]
    made = subprocess.run(
        [sys.executable, "-m", "tools.busybox_image", IMAGE], cwd=REPOSITORY, check=True, capture_output=True
    )
    subprocess.run([*images, "import", "-"], input=made.stdout, check=True, capture_output=True)
    yield
    subprocess.run([*images, "rm", "--sync", IMAGE], check=True, capture_output=True)


def test_the_examples_run_as_documented(
    request: pytest.FixtureRequest, tmp_path: Path, containerd: Containerd, example_image: None
) -> None:
    assert all(f"image: {IMAGE}" in each.read_text() for each in EXAMPLES.glob("*.yaml"))
    runtime = cli_runtime(request, CONTAINERD)
    with agent_with_manifests(tmp_path, runtime, EXAMPLES) as agent:
        until(lambda: agent.container("web").get("ready"), "web is ready")
        until(lambda: agent.container("pair").get("ready"), "pair is ready")
        until(lambda: agent.restarts("crash") >= 1, "crash is restarted")
        until(lambda: "terminated" in agent.container("job").get("state", {}), "the job is done")
        client = LocalClient(agent.root / "podkeeper.sock")
        assert client.get("pods", "job-n1")["status"]["phase"] == "Succeeded"
        assert agent.call("logs", "job", "count").stdout == b"step 1\nstep 2\nstep 3\n"
        assert agent.call("logs", "crash").stdout == b"about to fail\n"
        assert agent.container("crash")["lastState"]["terminated"]["exitCode"] == 3
        address = client.get("pods", "web-n1")["status"]["podIP"]
        with containerd.in_network(), urllib.request.urlopen(f"http://{address}:8080/", timeout=10) as answer:
            assert answer.read() == b"hello from a container\n"
        assert b"CrashLoopBackOff" in agent.call("ps").stdout
        assert agent.end(signal.SIGINT) == 0
        assert runtime.left(agent.root) == []
