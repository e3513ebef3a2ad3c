"""Each API client against the API contract."""

import pytest

from podkeeper.ports.api import Api
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.api import API, ApiSubject
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock


def memory(seconds_per_call: float = 0.0) -> ApiSubject:
    methods = ("get", "list", "watch", "create", "patch", "patch_status", "delete")
    made = MemoryApi(VirtualClock(), delays=dict.fromkeys(methods, seconds_per_call))
    api: Api = made  # mypy checks the signatures

    async def expire() -> None:
        made.expire()

    return ApiSubject(api, expire)


IMPLEMENTATIONS = {
    "memory": Implementation(opened(memory)),
    "slow memory": Implementation(opened(lambda: memory(0.2))),
}


@pytest.mark.parametrize("scenario", API.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[ApiSubject], scenario: ContractCase[ApiSubject]) -> None:
    implementation.check(scenario)
