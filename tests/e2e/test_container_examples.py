"""The pods of `examples-containers/`, run on a real containerd with the commands of `docs/containers.md`."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.app.local.client import LocalClient
from tests.e2e.house import folders_house, until
from tests.e2e.kinds import CONTAINERD
from tests.e2e.ways import way_of
from tests.runtimes.cri.containerd import Containerd

pytestmark = pytest.mark.slow

HOUSE = Path(__file__).parent.parent.parent
EXAMPLES = HOUSE / "examples-containers"
IMAGE = "docker.io/library/busybox:1.36"


@pytest.fixture
def example_image(containerd: Containerd) -> Iterator[None]:
    """The image of the examples, made as `docs/containers.md` says."""
    images = ["ctr", "-a", containerd.socket, "-n", "k8s.io", "images"]
    made = subprocess.run(
        [sys.executable, "-m", "tools.busybox_image", IMAGE], cwd=HOUSE, check=True, capture_output=True
    )
    subprocess.run([*images, "import", "-"], input=made.stdout, check=True, capture_output=True)
    yield
    subprocess.run([*images, "rm", "--sync", IMAGE], check=True, capture_output=True)


def test_the_examples_run_as_they_say(
    request: pytest.FixtureRequest, tmp_path: Path, containerd: Containerd, example_image: None
) -> None:
    assert all(f"image: {IMAGE}" in each.read_text() for each in EXAMPLES.glob("*.yaml"))
    way = way_of(request, CONTAINERD)
    with folders_house(tmp_path, way, EXAMPLES) as house:
        until(lambda: house.container("web").get("ready"), "web is ready")
        until(lambda: house.container("pair").get("ready"), "pair is ready")
        until(lambda: house.restarts("crash") >= 1, "crash is tried again")
        until(lambda: "terminated" in house.container("job").get("state", {}), "the job is done")
        client = LocalClient(house.root / "podkeeper.sock")
        assert client.get("pods", "job-n1")["status"]["phase"] == "Succeeded"
        assert house.call("logs", "job", "count").stdout == b"step 1\nstep 2\nstep 3\n"
        assert house.call("logs", "crash").stdout == b"about to fail\n"
        assert house.container("crash")["lastState"]["terminated"]["exitCode"] == 3
        address = client.get("pods", "web-n1")["status"]["podIP"]
        with containerd.inside(), urllib.request.urlopen(f"http://{address}:8080/", timeout=10) as answer:
            assert answer.read() == b"hello from a container\n"
        assert b"CrashLoopBackOff" in house.call("ps").stdout
        assert house.leave() == 0
        assert way.left(house.root) == []
