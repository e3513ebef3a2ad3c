"""Each source against the source contract."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from podkeeper.host.clock import SystemClock
from podkeeper.model.k8s.core import Pod
from podkeeper.ports.source import Source
from podkeeper.sources.apiserver import ApiSource
from podkeeper.sources.file import FileSource
from podkeeper.sources.http import HttpSource
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.contracts.source import SOURCE, SourceSubject
from podkeeper.testing.fake_sources import FakeStaticSource, fake_file_source, fake_http_source
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock
from tests.sources.web_server import serving


def static(made: FakeStaticSource, root: str) -> SourceSubject:
    source: Source = made  # mypy checks the signatures
    written: set[str] = set()

    async def publish(pods: tuple[Pod, ...]) -> None:
        places = {f"{root}/{pod.metadata.name}": pod for pod in pods}
        for place in written - places.keys():
            made.erase(place)
        for place, pod in places.items():
            made.write(place, pod)
        written.clear()
        written.update(places)

    return SourceSubject(source, publish, fail=made.fail, recover=made.recover)


def api() -> SourceSubject:
    clock = VirtualClock()
    memory = MemoryApi(clock)
    source: Source = ApiSource(api=memory, node_name="n1", clock=clock)

    async def publish(pods: tuple[Pod, ...]) -> None:
        wanted = {pod.metadata.name for pod in pods}
        for old in memory.objects(Pod):
            if old.metadata.name not in wanted:
                memory.remove(Pod, old.metadata.name or "", old.metadata.namespace or "")
        for pod in pods:
            memory.put(replace(pod, spec=replace(pod.spec, node_name="n1")))

    return SourceSubject(source, publish, fail=memory.go_down, recover=memory.come_up)


@asynccontextmanager
async def files() -> AsyncIterator[SourceSubject]:
    """A real directory. While it fails, each file has invalid content."""
    with tempfile.TemporaryDirectory() as directory:
        source: Source = FileSource([directory], "n1", SystemClock())
        texts: dict[Path, bytes] = {}

        async def publish(pods: tuple[Pod, ...]) -> None:
            wanted = {Path(directory, f"{pod.metadata.name}.yaml"): as_text(pod) for pod in pods}
            for gone in texts.keys() - wanted.keys():
                gone.unlink()
            for path, text in wanted.items():
                path.write_bytes(text)
            texts.clear()
            texts.update(wanted)

        def fail() -> None:
            for path in texts:
                path.write_bytes(b"kind: [")

        def recover() -> None:
            for path, text in texts.items():
                path.write_bytes(text)

        yield SourceSubject(source, publish, fail, recover)


@asynccontextmanager
async def url() -> AsyncIterator[SourceSubject]:
    """A real web server. While it fails, it returns errors."""
    body, status = b"", 200

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    async def publish(pods: tuple[Pod, ...]) -> None:
        nonlocal body
        body = b'{"apiVersion": "v1", "kind": "PodList", "items": [' + b", ".join(map(as_text, pods)) + b"]}"

    def fail() -> None:
        nonlocal status
        status = 500

    def recover() -> None:
        nonlocal status
        status = 200

    async with serving(answer) as address:
        source: Source = HttpSource(address, "n1", SystemClock(), period_seconds=0.05)
        yield SourceSubject(source, publish, fail, recover)


def as_text(pod: Pod) -> bytes:
    return msgspec.json.encode(replace(pod, api_version="v1", kind="Pod"))


IMPLEMENTATIONS = {
    "fake file": Implementation(opened(lambda: static(fake_file_source("n1"), "/manifests"))),
    "fake http": Implementation(opened(lambda: static(fake_http_source("n1"), "http://manifests"))),
    "api": Implementation(opened(api)),
    "file": Implementation(files, run=asyncio.run),
    "http": Implementation(url, run=asyncio.run),
}


@pytest.mark.parametrize("scenario", SOURCE.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[SourceSubject], scenario: ContractCase[SourceSubject]) -> None:
    implementation.check(scenario)
