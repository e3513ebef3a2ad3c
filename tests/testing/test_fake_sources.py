"""The fake file and http sources send static pods and fulfil the source contract."""

import asyncio
from functools import partial

import pytest

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.testing.build import pod
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.contracts.source import SOURCE, SourceSubject
from podkeeper.testing.fake_sources import FakeStaticSource, fake_file_source, fake_http_source
from podkeeper.testing.virtual_time import simulate

manifest = partial(pod, namespace="", uid="", image="nginx:1")


def subject(source: FakeStaticSource) -> SourceSubject:
    async def publish(pods: tuple[Pod, ...]) -> None:
        source.write("/manifests/all.yaml", *pods)

    return SourceSubject(source, publish, fail=source.fail, recover=source.recover)


IMPLEMENTATIONS = {
    "file": Implementation(opened(lambda: subject(fake_file_source("n1")))),
    "http": Implementation(opened(lambda: subject(fake_http_source("n1")))),
}


@pytest.mark.parametrize("scenario", SOURCE.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[SourceSubject], scenario: ContractCase[SourceSubject]) -> None:
    implementation.check(scenario)


def test_manifests_become_static_pods_of_the_node() -> None:
    async def scenario() -> list[PodUpdate]:
        source, updates = fake_file_source("n1"), list[PodUpdate]()
        source.write("/a.yaml", manifest("web"))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(source.run(updates.append))
            await asyncio.sleep(1)
            source.fail()
            source.erase("/a.yaml")
            await asyncio.sleep(1)
            assert len(updates) == 1
            source.recover()
            await asyncio.sleep(1)
            running.cancel()
        return updates

    first, last = simulate(scenario())[0]
    (web,) = first.pods
    assert (first.op, first.source, web.metadata.name, web.spec.node_name) == (Op.SET, "file", "web-n1", "n1")
    assert web.metadata.uid
    assert last.pods == ()


def test_an_edited_manifest_becomes_another_pod_and_an_unchanged_one_does_not() -> None:
    async def scenario() -> None:
        source = fake_http_source("n1")
        (one,) = source.write("http://x/", manifest("web"))
        assert source.write("http://x/", manifest("web")) == (one,)
        (other,) = source.write("http://x/", manifest("web", image="nginx:2"))
        assert other.metadata.uid != one.metadata.uid
        with pytest.raises(BadInput):
            source.write("http://x/", Pod(metadata=ObjectMeta(name="empty")))
        assert source.pods() == (other,)

    simulate(scenario())
