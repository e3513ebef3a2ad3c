"""Every source of pods against the source contract."""

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod
from podkeeper.ports.source import Source
from podkeeper.sources.apiserver import ApiSource
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import Scenario
from podkeeper.testing.contracts.source import SOURCE, SourceSubject
from podkeeper.testing.fake_sources import FakeStaticSource, fake_file_source, fake_http_source
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock


def static(made: FakeStaticSource, root: str) -> SourceSubject:
    source: Source = made  # the type checker's own contract
    written: set[str] = set()

    async def publish(pods: tuple[Pod, ...]) -> None:
        places = {f"{root}/{pod.metadata.name}": pod for pod in pods}
        for place in written - places.keys():
            made.erase(place)
        for place, pod in places.items():
            made.write(place, pod)
        written.clear()
        written.update(places)

    return SourceSubject(source, publish, trouble=made.fail, relief=made.recover)


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

    return SourceSubject(source, publish, trouble=memory.go_down, relief=memory.come_up)


IMPLEMENTATIONS = {
    "fake file": Implementation(opened(lambda: static(fake_file_source("n1"), "/manifests"))),
    "fake http": Implementation(opened(lambda: static(fake_http_source("n1"), "http://manifests"))),
    "api": Implementation(opened(api)),
}


@pytest.mark.parametrize("scenario", SOURCE.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_promise_is_kept(implementation: Implementation[SourceSubject], scenario: Scenario[SourceSubject]) -> None:
    implementation.check(scenario)
