"""Health of the runtime and its network, as of the last check.

Input: `check`, which the loop calls periodically. Output: `runtime_error`, which pauses the loop, and `network_error`,
which keeps new pods without host network from starting. Kubelet counterpart: `runtimeState` in pkg/kubelet/runtime.go.
"""

import asyncio
import logging

from podkeeper.model.errors import TryLater
from podkeeper.ports.runtime import Health

log = logging.getLogger(__name__)

CHECK_TIMEOUT_SECONDS = 10.0
NOT_CHECKED = "the runtime has not answered yet"


class RuntimeState:
    def __init__(self, runtime: Health) -> None:
        self._runtime = runtime
        # Errors until the first check, so that nothing starts before the runtime has answered.
        self.runtime_error: str | None = NOT_CHECKED
        self.network_error: str | None = NOT_CHECKED

    async def check(self) -> None:
        """Update both errors. If the runtime does not answer, `network_error` stays as it was."""
        self.runtime_error = await self._error()

    async def _error(self) -> str | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                health = await self._runtime.health()
        except TimeoutError:
            return f"the runtime does not answer within {CHECK_TIMEOUT_SECONDS:g} s"
        except TryLater as error:
            return f"the runtime does not answer: {error}"
        except Exception:
            log.exception("unexpected error in the health check of the runtime")
            return "the health check of the runtime failed unexpectedly"
        self.network_error = None if health.network_ready else health.message or "the runtime's network is not ready"
        return None if health.runtime_ready else f"the runtime is not ready: {health.message}"
