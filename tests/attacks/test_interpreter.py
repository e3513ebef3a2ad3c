"""Attacks on the program that sets up containers (the class of CVE-2019-5736 in runc)."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from podkeeper.runtimes.process.fork_client import ForkServerClient, sealed_copy


def test_the_fork_server_does_not_run_from_the_hosts_file(tmp_path: Path) -> None:
    """A script that begins with `#!/proc/self/exe` leads to the program of the process that executes it."""

    async def program() -> tuple[str, bytes]:
        client = ForkServerClient(str(tmp_path), "plain")
        client.start()
        await client.ready.wait()
        path = f"/proc/{client.pid}/exe"
        found = os.readlink(path), Path(path).read_bytes()
        await client.close()
        return found

    path, content = asyncio.run(program())
    assert path == "/memfd:podkeeper (deleted)"
    assert content == Path(sys.executable).read_bytes()


def test_the_copy_cannot_be_changed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"x" * 100_000)
    copy = sealed_copy(str(program))
    path = f"/proc/self/fd/{copy}"
    try:
        assert Path(path).read_bytes() == program.read_bytes()
        for attack in (
            lambda: os.pwrite(copy, b"y", 0),
            lambda: os.ftruncate(copy, 0),
            lambda: os.ftruncate(copy, 200_000),
            lambda: Path(path).write_bytes(b"y"),
        ):
            with pytest.raises(PermissionError):
                attack()
        assert Path(path).read_bytes() == program.read_bytes()
    finally:
        os.close(copy)
