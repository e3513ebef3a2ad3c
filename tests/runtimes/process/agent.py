"""An agent for kill tests.

Usage: `python -m tests.runtimes.process.agent ROOT JAIL PODS SEED`.

It keeps PODS pods of one container each and randomly stops, restarts or removes one. It adopts what an earlier agent
left. It prints `open` after the adoption and runs until it is killed.
"""

import asyncio
import random
import sys

from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import RecordState
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.runtimes.process.runtime import ProcessRuntime


def uid_of(number: int) -> PodUID:
    return PodUID(f"torture-{number}")


def mark_of(root: str, number: int) -> str:
    """Return the argument that identifies the process of a pod."""
    return f"86399.{abs(hash_of(root)) % 10**6:06}{number:03}"


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[-12:], "big")


async def keep(runtime: ProcessRuntime, root: str, number: int, dice: random.Random) -> None:
    pod = Pod(metadata=ObjectMeta(name=f"p{number}", namespace="default", uid=uid_of(number)), spec=PodSpec())
    command = ("sleep", mark_of(root, number))
    while True:
        record = await runtime.pod_record(uid_of(number))
        newest = record.sandboxes[0] if record.sandboxes else None
        if newest is None or not newest.ready:
            attempt = 0 if newest is None else newest.attempt + 1
            await runtime.run_sandbox(SandboxConfig(pod=pod, attempt=attempt))
            continue
        last = record.container("c")
        if last is not None and last.state is RecordState.RUNNING:
            await asyncio.sleep(dice.uniform(0, 0.05))
            match dice.randrange(4):
                case 0:
                    await runtime.stop_container(last.id, 0)
                case 1:
                    await runtime.remove_sandbox(newest.id)
                case 2:
                    await runtime.exec_sync(last.id, ["true"], 5)
            continue
        config = ContainerConfig(
            pod=pod,
            container=Container(name="c", image="host"),
            attempt=0 if last is None else last.restart_count + 1,
            image="host",
            spec_hash="",
            command=command,
        )
        await runtime.start_container(await runtime.create_container(newest.id, config))


async def main(root: str, jail: str, pods: int, seed: int) -> None:
    async with ProcessRuntime(root, jail=jail) as runtime:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as group:
            for number in range(pods):
                group.create_task(keep(runtime, root, number, random.Random(seed * 1000 + number)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
