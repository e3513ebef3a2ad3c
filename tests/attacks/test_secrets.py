"""Secrets stay in memory: a reader of the state directory, or of a backup of it, finds none."""

import asyncio
from pathlib import Path

from podkeeper.model.probing import CommandExited
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.harness import RuntimeHarness, opened, remove_all, temporary_root

SECRET = "correct-horse-battery-staple"


def test_values_of_secrets_are_not_in_the_state_directory() -> None:
    async def act() -> None:
        with temporary_root() as root:
            async with opened(root) as runtime:
                await look_for_secret(runtime, root)
                await remove_all(runtime, root)

    asyncio.run(act())


async def look_for_secret(runtime: ProcessRuntime, root: str) -> None:
    harness = RuntimeHarness(runtime)
    container = await harness.start("sh", "-c", f"# {SECRET}\nexec sleep 3600", env={"PASSWORD": SECRET})
    answer = await runtime.exec_sync(container, ["sh", "-c", "echo $PASSWORD"], 5)
    assert answer == CommandExited(0, f"{SECRET}\n".encode())
    files = [path for path in Path(root).rglob("*") if path.is_file()]
    assert any(path.name == "config.json" and path.parent.name == container for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
