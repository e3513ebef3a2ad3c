"""Each runtime against the runtime contract."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import pytest

from podkeeper.ports.runtime import Runtime
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.contracts.runtime import RUNTIME, RuntimeSubject
from podkeeper.testing.virtual_time import VirtualClock
from tests.runtimes.cri.cri_node import MISSING_IMAGE, PULLABLE_IMAGE, CriNode
from tests.runtimes.process.harness import temporary_runtime


def fake(seconds_per_call: float = 0.0) -> RuntimeSubject:
    delays: dict[str, float] = dict.fromkeys(Operation, seconds_per_call)
    made = FakeRuntime(VirtualClock(), delays=delays)
    made.missing_images.add("podkeeper.invalid/missing:1")
    runtime: Runtime = made  # mypy checks the signatures
    return RuntimeSubject(runtime, image="busybox:1")


@asynccontextmanager
async def process() -> AsyncIterator[RuntimeSubject]:
    async with temporary_runtime(jail="auto") as made:
        runtime: Runtime = made
        with TemporaryDirectory(prefix="podkeeper-test-") as log_root:
            yield RuntimeSubject(runtime, image="host", log_root=log_root)


IMPLEMENTATIONS = {
    "fake": Implementation(opened(fake)),
    "slow fake": Implementation(opened(lambda: fake(0.05))),
    "process": Implementation(process, run=asyncio.run),
}


@pytest.mark.parametrize("scenario", RUNTIME.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[RuntimeSubject], scenario: ContractCase[RuntimeSubject]) -> None:
    implementation.check(scenario)


@pytest.mark.parametrize("scenario", RUNTIME.scenarios, ids=name_of)
def test_contract_on_cri_runtimes(cri_node: CriNode, scenario: ContractCase[RuntimeSubject]) -> None:
    @asynccontextmanager
    async def open_on_node() -> AsyncIterator[RuntimeSubject]:
        async with cri_node.opened() as made:
            runtime: Runtime = made
            yield RuntimeSubject(runtime, image=PULLABLE_IMAGE, missing_image=MISSING_IMAGE)

    Implementation(open_on_node, run=cri_node.run).check(scenario)
