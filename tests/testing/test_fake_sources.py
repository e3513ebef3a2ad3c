"""The fake file and http sources tell static pods, and keep the source contract."""

import asyncio

import pytest

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import Scenario
from podkeeper.testing.contracts.source import SOURCE, SourceSubject
from podkeeper.testing.fake_sources import FakeStaticSource, fake_file_source, fake_http_source
from podkeeper.testing.virtual_time import simulate


def manifest(name: str, image: str = "nginx:1") -> Pod:
    return Pod(metadata=ObjectMeta(name=name), spec=PodSpec(containers=(Container(name="web", image=image),)))


def subject(source: FakeStaticSource) -> SourceSubject:
    async def publish(pods: tuple[Pod, ...]) -> None:
        source.write("/manifests/all.yaml", *pods)

    return SourceSubject(source, publish, trouble=source.fail, relief=source.recover)


IMPLEMENTATIONS = {
    "file": Implementation(opened(lambda: subject(fake_file_source("n1")))),
    "http": Implementation(opened(lambda: subject(fake_http_source("n1")))),
}


@pytest.mark.parametrize("scenario", SOURCE.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_promise_is_kept(implementation: Implementation[SourceSubject], scenario: Scenario[SourceSubject]) -> None:
    implementation.check(scenario)


def test_pods_are_told_as_static_pods_of_the_node() -> None:
    async def scenario() -> list[PodUpdate]:
        source, told = fake_file_source("n1"), list[PodUpdate]()
        source.write("/a.yaml", manifest("web"))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(source.run(told.append))
            await asyncio.sleep(1)
            source.fail()
            source.erase("/a.yaml")
            await asyncio.sleep(1)
            assert len(told) == 1
            source.recover()
            await asyncio.sleep(1)
            running.cancel()
        return told

    first, last = simulate(scenario())[0]
    (web,) = first.pods
    assert (first.op, first.source, web.metadata.name, web.spec.node_name) == (Op.SET, "file", "web-n1", "n1")
    assert web.metadata.uid
    assert last.pods == ()


def test_an_edited_manifest_is_another_pod_and_the_same_one_is_the_same() -> None:
    async def scenario() -> None:
        source = fake_http_source("n1")
        (one,) = source.write("http://x/", manifest("web"))
        assert source.write("http://x/", manifest("web")) == (one,)
        (other,) = source.write("http://x/", manifest("web", "nginx:2"))
        assert other.metadata.uid != one.metadata.uid
        with pytest.raises(BadInput):
            source.write("http://x/", Pod(metadata=ObjectMeta(name="empty")))
        assert source.pods() == (other,)

    simulate(scenario())
