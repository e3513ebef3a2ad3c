"""Start time and memory of a keeper: `python -m bench.keepers [--json] [--keepers N] [--rounds N]`.

* forked: a keeper from the fork server, as `ProcessRuntime` starts it,
* new: the same keeper in the same runtime, but as a new Python process that imports its modules itself,
* shim: containerd-shim-runc-v2, one per pod. This part starts its own containerd and requires what `bench.cri`
  requires. Without it, `shim_absent` is the reason.

Time runs from `run_sandbox` to the keeper's message that it is ready, one pod at a time. Then each pod starts one
container, and PSS is measured while all pods run. The kinds alternate, so that other load on the machine affects both.
Other Python processes on the machine share pages with keepers and reduce their PSS a little.
docs/decisions/0014-keeper-processes.md has the result.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

import podkeeper
from bench.agent_usage import kib_of
from bench.cri import SHAPE as CONTAINER_SHAPE
from bench.cri import own_containerd
from bench.cri_floor import Floor
from bench.figures import Figures, print_figures, spreads
from bench.user import Shape
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.runtimes.process.fork_client import ForkServerClient
from podkeeper.runtimes.process.keeper.files import KEEPER_FILE
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.cri.containerd import Containerd, missing

KEEPERS = 20
ROUNDS = 3
SHIMS = 5
SETTLE_SECONDS = 1.0
_NEW_KEEPER = """
import json, socket, sys
sys.path.insert(0, sys.argv[1])
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.main import redirect_to_null, run_keeper
redirect_to_null()
directory, agent, lock, found = sys.argv[2:]
isolation = Isolation.from_json(json.loads(found))
run_keeper(directory, socket.socket(fileno=int(agent)), int(lock), isolation)
"""


class NewProcesses(ForkServerClient):
    """Starts keepers as new Python processes. The fork server only probes the machine and deletes files."""

    def __init__(self, root: str, jail: str) -> None:
        super().__init__(root, jail)
        self._keepers: list[subprocess.Popen[bytes]] = []

    async def fork_keeper(self, directory: str, lock: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        files = (theirs.fileno(), lock)
        words = (str(Path(podkeeper.__file__).parent.parent), directory, *map(str, files), json.dumps(self.isolation))
        with theirs:
            program = [sys.executable, "-I", "-S", "-c", _NEW_KEEPER, *words]  # options as for the fork server
            self._keepers.append(subprocess.Popen(program, pass_fds=files, env={}, cwd="/"))
        return ours

    async def close(self) -> None:
        await super().close()
        for keeper in self._keepers:
            keeper.wait()


KINDS = {"forked": ForkServerClient, "new": NewProcesses}


async def start_ms(runtime: ProcessRuntime, name: str) -> float:
    """Start a pod with one container. Return the milliseconds until its keeper was ready."""
    pod = Shape().pod(name)
    pod = replace(pod, metadata=replace(pod.metadata, uid=str(uuid4())))
    began = time.perf_counter()
    sandbox_id = await runtime.run_sandbox(SandboxConfig(pod=pod, attempt=0))
    taken = (time.perf_counter() - began) * 1000
    container = pod.spec.containers[0]
    command = tuple(container.command or ())
    config = ContainerConfig(pod=pod, container=container, attempt=0, image="host", spec_hash="", command=command)
    await runtime.start_container(await runtime.create_container(sandbox_id, config))
    return taken


async def keeper_figures(keepers: int, rounds: int) -> Figures:
    """Return start time and PSS of both kinds of keepers, alternating."""
    seen = defaultdict[str, list[float]](list)
    for kind, make in list(KINDS.items()) * rounds:
        with tempfile.TemporaryDirectory(prefix="podkeeper-bench-") as root:
            server = make(root, "auto")
            async with ProcessRuntime(root, fork_server=server) as runtime:
                await runtime.isolation()  # the fork server is ready
                try:
                    seen[f"{kind}_start_ms"] += [await start_ms(runtime, f"pod-{number}") for number in range(keepers)]
                    await asyncio.sleep(SETTLE_SECONDS)
                    about = [json.loads(file.read_text()) for file in Path(root, "sandboxes").glob(f"*/{KEEPER_FILE}")]
                    seen[f"{kind}_pss_mib"] += [pss_mib(each["pid"]) for each in about]
                    if kind == "forked":
                        seen["fork_server_pss_mib"].append(pss_mib(server.pid))
                finally:
                    for record in await runtime.list_pods():
                        await runtime.remove_sandbox(record.sandboxes[0].id)
    return spreads(seen)


async def shim_figures(node: Containerd) -> Figures:
    """Return the PSS of containerd's shims while all their pods run."""
    floor = Floor(node.socket, node.facts, node.cgroup_root, str(node.logs), CONTAINER_SHAPE)
    pods = [await floor.made(await floor.prepared(f"pod-{number}")) for number in range(SHIMS)]
    await asyncio.sleep(SETTLE_SECONDS)
    shims = node.helpers()
    assert len(shims) == len(pods)
    figures = spreads({"shim_pss_mib": [pss_mib(pid) for pid in shims]})
    for pod in pods:
        await floor.removed(pod)
    await floor.close()
    return figures


def pss_mib(pid: int) -> float:
    return kib_of(pid, "smaps_rollup", "Pss:") / 1024


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.keepers", description="Measure keepers and shims.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keepers", type=int, default=KEEPERS, help=f"keepers of each kind [default: {KEEPERS}]")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each kind [default: {ROUNDS}]")
    options = parser.parse_args(arguments)
    figures: dict[str, float | str] = {**asyncio.run(keeper_figures(options.keepers, options.rounds))}
    if (reason := missing()) is not None:
        figures["shim_absent"] = reason
    else:
        with own_containerd() as (node, _):
            figures |= asyncio.run(shim_figures(node))
    print_figures(figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
