"""Attacks of processes that try to outlive their container."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from podkeeper.model.runtime_calls import Mount, SandboxConfig
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.harness import (
    RuntimeHarness,
    eventually,
    is_alive,
    keepers_of,
    opened,
    remove_all,
    temporary_root,
)
from tests.runtimes.process.test_runtime import pod_cgroup

DAEMON = "setsid setsid sh -c 'echo $$ > /pid/daemon; exec sleep 3600' & while :; do sleep 1; done"


@pytest.mark.parametrize("end", ["stop", "killed keeper"])
def test_a_daemon_in_the_hosts_pid_namespace_does_not_outlive_its_container(tmp_path: Path, end: str) -> None:
    """Daemons that leave their session and parent (the class of CVE-2016-8867: processes outside of the limits)."""
    if os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user has no cgroup that kills all processes of a container")

    async def act(runtime: ProcessRuntime, root: str) -> None:
        harness = RuntimeHarness(runtime, host_pid=True)
        async with pod_cgroup(harness.pod) as parent:
            box = await runtime.run_sandbox(SandboxConfig(pod=harness.pod, attempt=0, cgroup_parent=parent))
            mounts = (Mount(container_path="/pid", host_path=str(tmp_path)),)
            container = await harness.create(box, "sh", "-c", DAEMON, mounts=mounts)
            await runtime.start_container(container)
            file = tmp_path / "daemon"
            await eventually(lambda: file.exists() and file.read_text().strip() != "", "the daemon runs")
            daemon = int(file.read_text())
            assert is_alive(daemon)
            if end == "stop":
                await runtime.stop_container(container, 0)
            else:
                os.kill(keepers_of(root)[box], signal.SIGKILL)
            await harness.exited(container)
            await eventually(lambda: not is_alive(daemon), "the daemon has ended")
            await remove_all(runtime, root)

    async def main() -> None:
        with temporary_root() as root:
            async with opened(root, "auto") as runtime:
                await act(runtime, root)

    asyncio.run(main())
