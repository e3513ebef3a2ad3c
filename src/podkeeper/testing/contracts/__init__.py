"""Port contracts: test scenarios that every implementation of a port must pass.

    from podkeeper.testing.contracts import Implementation
    from podkeeper.testing.contracts.runtime import RUNTIME, RuntimeSubject

    MINE = Implementation(opened(lambda: RuntimeSubject(MyRuntime(), image="busybox")), run=asyncio.run)

    @pytest.mark.parametrize("scenario", RUNTIME.scenarios, ids=name_of)
    def test_my_runtime(scenario):
        MINE.check(scenario)

Use them to test your own runtime, source, volumes and so on. The docstring of a scenario states one part of the
contract. A scenario receives a subject: the implementation and the values that the scenario needs, such as an image.
By default a scenario runs in virtual time, which suits fakes. Pass `run=asyncio.run` for real components.
"""

from podkeeper.testing.contracts.contract import Contract, Implementation, eventually, name_of, opened, raises

__all__ = ["Contract", "Implementation", "eventually", "name_of", "opened", "raises"]
