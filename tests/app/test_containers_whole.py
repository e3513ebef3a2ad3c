"""A whole agent on containerd, constructed as by `podkeeper run --runtime cri`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeeper.app.standalone import AgentParts, Standalone, open_agent_parts
from podkeeper.engine.log_symlinks import LogSymlinks
from podkeeper.host.cgroups import own_root
from podkeeper.host.log_links import HostLogLinks
from podkeeper.model.kubelet_config import Duration, KubeletConfiguration
from podkeeper.testing.memory_api import MemoryApi
from tests.runtimes.cri.api_pods import NODE, ApiPods, agent_on_api
from tests.runtimes.cri.containerd import Containerd, missing, remove_cgroups, shared_instance

pytestmark = pytest.mark.slow  # real containers

TIMEOUT_SECONDS = 30.0
LONG = "trap 'exit 0' TERM; echo hello; sleep 100000 & wait"
FULL = {"cpu": "100m", "memory": "32Mi"}


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with shared_instance() as node:
        yield node


class Node(ApiPods):
    """The agent, and an API in memory."""

    def __init__(self, root: Path, parts: AgentParts, api: MemoryApi) -> None:
        super().__init__(api)
        self.root = root
        self.parts = parts

    def create(self, name: str, resources: Any = None, **spec: Any) -> None:
        container = {"command": ["sh", "-c", LONG], "resources": resources or {}}
        self.create_pod(name, container, terminationGracePeriodSeconds=2, **spec)

    def links(self) -> list[Path]:
        return sorted((self.root / "links").glob("*"))


async def until(holds: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within the timeout: {what}") from None


@asynccontextmanager
async def built(containerd: Containerd, root: Path) -> AsyncIterator[Node]:
    config = KubeletConfiguration(
        pod_logs_dir=str(root / "pods"),
        container_log_monitor_interval=Duration("1s"),
        allowed_unsafe_sysctls=("kernel.msg*",),
    )
    wanted = Standalone(
        paths=(),
        root=root / "r",
        node_name=NODE,
        runtime="cri",
        runtime_endpoint=f"unix://{containerd.socket}",
        config=config,
        log_links=root / "links",
    )
    async with open_agent_parts(wanted) as parts, agent_on_api(parts) as (_, api):
        yield Node(root, parts, api)


def on_node(containerd: Containerd, root: Path, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            async with built(containerd, root) as node:
                await scenario(node)
        finally:
            await containerd.remove_all()
            remove_cgroups(own_root(str(root / "r")))

    containerd.run(run())


def test_a_pod_whose_settings_cannot_be_enforced_is_rejected(containerd: Containerd, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create("forbidden", securityContext={"sysctls": [{"name": "kernel.shmmax", "value": "1"}]})
        node.create("allowed", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "4096"}]})
        node.create("strict", securityContext={"supplementalGroupsPolicy": "Strict"})
        node.create("walled", securityContext={"appArmorProfile": {"type": "RuntimeDefault"}})
        enforced, offered = node.parts.settings.enforcement, node.parts.settings.node.status.features
        assert enforced is not None
        assert offered is not None
        expected = {
            "forbidden": ("SysctlForbidden", 'forbidden sysctl: "kernel.shmmax" not allowlisted'),
            **({} if offered.supplemental_groups_policy else {"strict": ("SupplementalGroupsPolicyNotSupported", "")}),
            **({} if enforced.apparmor else {"walled": ("AppArmor", "Cannot enforce AppArmor: AppArmor is not ")}),
        }

        def is_rejected(name: str) -> bool:
            return node.phase(name) == "Failed"

        for name, (reason, words) in expected.items():
            await until(partial(is_rejected, name), f"{name} is rejected")
            pod = node.find(name)
            assert pod is not None
            assert pod.status.reason == reason
            assert words in (pod.status.message or "")
        await until(lambda: node.is_ready("allowed"), "the other one is ready")

    on_node(containerd, tmp_path, scenario)


def test_the_status_of_a_guaranteed_pod_has_its_resources_as_in_the_kubelet(
    containerd: Containerd, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create("guaranteed", resources={"requests": FULL, "limits": FULL})
        node.create("plain")
        await until(lambda: node.is_ready("guaranteed") and node.is_ready("plain"), "both are ready")
        pod = node.find("guaranteed")
        assert pod is not None
        (status,) = pod.status.container_statuses or ()
        assert status.allocated_resources == FULL
        assert status.resources is not None
        assert (status.resources.requests, status.resources.limits) == (FULL, FULL)
        plain = node.find("plain")
        assert plain is not None
        (status,) = plain.status.container_statuses or ()
        assert status.allocated_resources is None
        assert msgspec.to_builtins(status).get("resources") == {}

    on_node(containerd, tmp_path, scenario)


def test_each_log_has_a_link_until_it_is_removed(containerd: Containerd, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create("web")
        await until(lambda: node.is_ready("web"), "it is ready")
        pod = node.find("web")
        assert pod is not None
        (status,) = pod.status.container_statuses or ()
        container_id = (status.container_id or "").removeprefix("containerd://")
        (link,) = node.links()
        assert link.name == f"web_default_app-{container_id}.log"
        assert link.resolve() == tmp_path / "pods" / f"default_web_{pod.metadata.uid}" / "app" / "0.log"
        await until(lambda: "stdout F hello" in link.read_text(), "its log can be read there")
        node.delete("web")
        await until(lambda: not link.exists(), "its log is gone")
        symlinks = LogSymlinks(
            runtime=node.parts.ports.runtime,
            links=HostLogLinks(tmp_path / "links"),
            log_root=str(tmp_path / "pods"),
        )
        await symlinks.sync()
        assert node.links() == []

    on_node(containerd, tmp_path, scenario)
