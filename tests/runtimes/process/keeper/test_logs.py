"""Requests about logs that a keeper refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.runtimes.process.harness import RuntimeHarness, opened, remove_all, temporary_root


def test_an_old_keeper_refuses_an_unknown_request() -> None:
    """A keeper may be older than its agent. If it refuses a log rotation, the agent undoes the rotation."""

    async def scenario() -> list[dict[str, Any]]:
        with temporary_root() as root:
            async with opened(root) as runtime:
                container = await RuntimeHarness(runtime).start("sleep", "3600")
                (place,) = Path(root).glob("sandboxes/*/keeper.sock")
                reader, writer = await asyncio.open_unix_connection(str(place))
                questions = [{"id": 1, "do": "sing"}, {"id": 2, "do": "reopen_log", "container": container}]
                writer.writelines(json.dumps(each).encode() + b"\n" for each in questions)
                answers = [json.loads(await asyncio.wait_for(reader.readline(), 10)) for _ in questions]
                writer.close()
                await remove_all(runtime, root)
                return answers

    refused, done = asyncio.run(scenario())
    assert (refused["id"], refused["error"]) == (1, "unknown request: sing")
    assert done == {"id": 2, "ok": {}}
