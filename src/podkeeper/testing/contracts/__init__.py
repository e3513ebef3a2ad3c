"""What each port promises, as scenarios that every implementation must pass: ours, and yours.

    from podkeeper.testing.contracts import Implementation
    from podkeeper.testing.contracts.runtime import RUNTIME, RuntimeSubject

    MINE = Implementation(opened(lambda: RuntimeSubject(MyRuntime(), image="busybox")), run=asyncio.run)

    @pytest.mark.parametrize("scenario", RUNTIME.scenarios, ids=name_of)
    def test_my_runtime(scenario):
        MINE.check(scenario)

A scenario is a coroutine function whose docstring is the promise, in one sentence. It gets a subject: the
implementation, and what must be known to try it. Fakes are checked in virtual time, real things in real time.
"""

from podkeeper.testing.contracts.contract import Contract, Implementation, eventually, name_of, opened, raises

__all__ = ["Contract", "Implementation", "eventually", "name_of", "opened", "raises"]
