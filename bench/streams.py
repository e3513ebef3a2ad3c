"""Our SPDY client beside a WebSocket client: `python -m bench.streams [--json] [--rounds N]`.

Both clients run the same `exec` on one containerd, alternately, and read 204.8 MB of its output:

* spdy: `StreamCalls.exec` on `podkeeper.streams`, as the agent does,
* websocket: `v4.channel.k8s.io` on aiohttp, the newest WebSocket protocol that containerd 1.6 supports.

Time runs from the CRI call `Exec` to the exit status. CPU time is that of this process: the client without containerd.
Imports are measured as CPU time and RSS, in a new interpreter (`bare`) and in one that has loaded the CRI runtime of
the agent (`added`). The benchmark starts its own containerd and requires what `bench.cri` requires. A missing component
is reported. docs/decisions/0013-spdy-streams.md has the result.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from aiohttp import ClientSession, WSMsgType

from bench.cri import SHAPE, own_containerd
from bench.cri_floor import Floor
from bench.figures import Figures, print_figures, spreads
from podkeeper.model.probing import CommandExited
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.stream_calls import CALL_SECONDS, StreamCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from podkeeper.streams.remote_command import end_of
from tests.runtimes.cri.containerd import Containerd, missing

ROUNDS = 5
BLOCK_BYTES = 65_536
BLOCKS = 3125  # 204.8 MB
_STDOUT, _ERROR = 1, 3  # channels of v4.channel.k8s.io: the first byte of each message

IMPORTS = {"spdy": "podkeeper.streams.remote_command, podkeeper.streams.upgrade", "websocket": "aiohttp"}
LOADED = {"bare": "sys", "added": "podkeeper.runtimes.cri.runtime"}
_IMPORT = """
import resource, sys, time
import {loaded}
def rss_mib(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
rss, cpu = rss_mib(), time.process_time()
import {imported}
print((time.process_time() - cpu) * 1000, rss_mib() - rss)
"""


async def spdy(transport: GrpcTransport, container_id: str, command: list[str]) -> int:
    """Run a command over SPDY. Return the size of its output."""
    session = await StreamCalls(transport).exec(container_id, command, tty=False, stdin=False)
    try:
        received = 0
        async for _, data in session.output():
            received += len(data)
        assert await session.wait() == CommandExited(0)
    finally:
        await session.close()
    return received


async def websocket(transport: GrpcTransport, container_id: str, command: list[str], http: ClientSession) -> int:
    """Run a command over WebSocket. Return the size of its output."""
    request = cri.ExecRequest(container_id=container_id, cmd=command, stdout=True, stderr=True)
    service = "/runtime.v1.RuntimeService/Exec"
    answer = await transport.unary(service, request, cri.ExecResponse, CALL_SECONDS)
    received, end = 0, b""
    async with http.ws_connect(answer.url, protocols=("v4.channel.k8s.io",), max_msg_size=0) as channels:
        assert channels.protocol == "v4.channel.k8s.io"
        async for message in channels:
            assert message.type is WSMsgType.BINARY
            if message.data[0] == _STDOUT:
                received += len(message.data) - 1
            elif message.data[0] == _ERROR:
                end += message.data[1:]
    assert end_of(end) == CommandExited(0)
    return received


async def transfer_figures(node: Containerd, rounds: int, blocks: int) -> Figures:
    """Return wall time and CPU time of both clients, alternating."""
    command = ["sh", "-c", f"dd if=/dev/zero bs={BLOCK_BYTES} count={blocks} 2>/dev/null"]
    floor = Floor(node.socket, node.facts, node.cgroup_root, str(node.logs), SHAPE)
    transport = GrpcTransport(node.socket)
    seen = defaultdict[str, list[float]](list)
    async with ClientSession() as http:
        pod = await floor.made(await floor.prepared("streams"))
        clients: dict[str, Callable[[], Awaitable[int]]] = {
            "spdy": lambda: spdy(transport, pod.container_id, command),
            "websocket": lambda: websocket(transport, pod.container_id, command, http),
        }
        for number in range(-1, rounds):  # the first round does not count, because all caches are empty
            for name, run in clients.items():
                began, cpu = time.perf_counter(), time.process_time()
                assert await run() == BLOCK_BYTES * blocks
                if number >= 0:
                    seen[f"{name}_wall_s"].append(time.perf_counter() - began)
                    seen[f"{name}_cpu_s"].append(time.process_time() - cpu)
            if number >= 0:
                seen["spdy_cpu_ratio_to_websocket"].append(seen["spdy_cpu_s"][-1] / seen["websocket_cpu_s"][-1])
        await floor.removed(pod)
    await transport.close()
    await floor.close()
    return spreads(seen)


def import_figures(rounds: int) -> Figures:
    """Return the cost of both imports, each in new interpreters."""
    seen = defaultdict[str, list[float]](list)
    for number in range(-1, rounds):  # the first round does not count, because it compiles the modules
        for kind, loaded in LOADED.items():
            for name, imported in IMPORTS.items():
                program = _IMPORT.format(loaded=loaded, imported=imported)
                words = [sys.executable, "-c", program]
                done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
                if number >= 0:
                    cpu_ms, rss_mib = map(float, done.stdout.split())
                    seen[f"{name}_import_{kind}_cpu_ms"].append(cpu_ms)
                    seen[f"{name}_import_{kind}_rss_mib"].append(rss_mib)
    return spreads(seen)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description="Compare SPDY with WebSocket.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each client [default: {ROUNDS}]")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"cannot measure streams: {reason}", file=sys.stderr)
        return 1
    with own_containerd() as (node, _):
        figures = asyncio.run(transfer_figures(node, options.rounds, options.blocks))
    print_figures(figures | import_figures(options.rounds), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
