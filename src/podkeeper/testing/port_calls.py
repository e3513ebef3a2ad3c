"""Record the port calls of a module, suspend in each of them and inject failures.

    calls = PortCalls()
    volumes = calls.watch("volumes", FakeVolumes(clock))     # give this to the module under test

A watched call suspends twice: before its effect, and between its effect and its return. Other tasks can therefore run
at both moments, even if the fake itself never awaits. Calls do not suspend in a context in which `AT_ONCE` is set.

`calls.log` lists the calls. `calls.arm(InjectedFault(...))` makes one call, or several in a row, raise an error: before
the call takes effect, or after it (the effect remains, the response is lost).

`DOCUMENTED` lists the errors that each method of a port may raise. `interleave` and `failures` use this module.
"""

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from podkeeper.model.errors import (
    AgentError,
    AlreadyExists,
    ApiUnavailable,
    CallTimedOut,
    Conflict,
    GiveUp,
    Gone,
    ImagePullFailed,
    NetworkNotReady,
    NotConfigurable,
    NotFound,
    RuntimeRefused,
    RuntimeUnavailable,
    TryLater,
)

P = TypeVar("P")

AT_ONCE: ContextVar[bool] = ContextVar("at_once", default=False)
"""Set in tasks whose port calls do not suspend, so that such a task overtakes all others."""
Errors = tuple[type[Exception], ...]

_RUNTIME: Errors = (RuntimeUnavailable, CallTimedOut, RuntimeRefused)
_DISK: Errors = (TryLater,)
_NO_ERRORS: Errors = ()

DOCUMENTED: Mapping[str, Mapping[str, Errors]] = {
    "runtime": {
        "run_sandbox": (*_RUNTIME, NotConfigurable, NetworkNotReady),
        "stop_sandbox": _RUNTIME,
        "remove_sandbox": _RUNTIME,
        "create_container": (*_RUNTIME, NotConfigurable),
        "start_container": _RUNTIME,
        "stop_container": _RUNTIME,
        "remove_container": _RUNTIME,
        "image": _RUNTIME,
        "pull_image": (*_RUNTIME, ImagePullFailed),
        "list_images": _RUNTIME,
        "remove_image": _RUNTIME,
        "image_usage": _RUNTIME,
        "list_pods": _RUNTIME,
        "pod_record": _RUNTIME,
        "events": (RuntimeUnavailable,),
        "exec_sync": _RUNTIME,
        "reopen_log": _RUNTIME,
        "health": (RuntimeUnavailable, CallTimedOut),
        "pod_stats": _RUNTIME,
    },
    "api": {
        "get": (NotFound, ApiUnavailable),
        "list": (ApiUnavailable,),
        "watch": (Gone, ApiUnavailable),
        "create": (AlreadyExists, ApiUnavailable),
        "patch": (NotFound, Conflict, ApiUnavailable),
        "patch_status": (NotFound, Conflict, ApiUnavailable),
        "delete": (NotFound, Conflict, ApiUnavailable),
    },
    "volumes": {
        "mount": (TryLater, GiveUp),
        "unmount": _DISK,
        "directories": _DISK,
        "remove_directory": _DISK,
    },
    "cgroups": {"ensure": _DISK, "remove": _DISK, "throttle": _DISK, "list_pods": _DISK},
    "journal": {"sync": _DISK},
    "prober": {"http": _NO_ERRORS, "tcp": _NO_ERRORS, "grpc": _NO_ERRORS},  # results, not errors, report failed probes
    "source": {"run": _NO_ERRORS},  # a source retries by itself
}
"""The errors that the port contracts allow, by port and method. `tests/testing` checks that no method is missing."""


@dataclass(frozen=True, slots=True)
class PortCall:
    """One call: the port, the method, and how many calls of that method came before it."""

    port: str
    method: str
    number: int

    def __str__(self) -> str:
        return f"{self.port}.{self.method} (call {self.number + 1})"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """An error for one call and for the next `times - 1` calls of the same method."""

    call: PortCall
    error: type[Exception]
    after_effect: bool = False
    times: int = 1

    def hits(self, call: PortCall) -> bool:
        first = self.call
        return (call.port, call.method) == (first.port, first.method) and 0 <= call.number - first.number < self.times

    def __str__(self) -> str:
        when = "after its effect" if self.after_effect else "without effect"
        often = f", {self.times} times" if self.times > 1 else ""
        return f"{self.call} raises {self.error.__name__} {when}{often}"


class UnexpectedError(Exception):
    """An error that no contract allows: a bug in the adapter or the kernel."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call, its start time, and whether a failure was injected."""

    call: PortCall
    at: float
    failed: bool


class PortCalls:
    """The calls of one module to all of its watched ports."""

    def __init__(self) -> None:
        self.log: list[LoggedCall] = []
        self.errors: dict[tuple[str, str], Errors] = {}
        self._faults: list[InjectedFault] = []
        self._made: Counter[tuple[str, str]] = Counter()
        self._stopped = False

    def watch(self, name: str, port: P, errors: Mapping[str, Errors] | None = None) -> P:
        """Return a wrapper for the port. `errors` is required for collaborators that are not in `DOCUMENTED`."""
        if errors is None and name not in DOCUMENTED:
            raise ValueError(f"{name!r} is not in DOCUMENTED: pass the errors of each method to watch, or {{}}")
        # Otherwise a misspelled method would silently not be watched.
        for method in errors or ():
            if not hasattr(port, method):
                raise AttributeError(f"{name} has no method {method!r}")
        allowed = DOCUMENTED[name] if errors is None else errors
        self.errors.update({(name, method): raised for method, raised in allowed.items()})
        return cast(P, _WatchedPort(self, name, port, frozenset(allowed)))

    def arm(self, fault: InjectedFault) -> None:
        self._faults.append(fault)

    def stop(self) -> None:
        """Inject no more failures and record no more calls."""
        self._faults.clear()
        self._stopped = True

    def next_call(self, port: str, method: str) -> PortCall:
        return PortCall(port, method, self._made[port, method])

    def begin(self, port: str, method: str) -> InjectedFault | None:
        """Record a call. Return the fault to inject, if any."""
        call = self.next_call(port, method)
        self._made[port, method] += 1
        fault = next((fault for fault in self._faults if fault.hits(call)), None)
        if not self._stopped:
            self.log.append(LoggedCall(call, asyncio.get_running_loop().time(), fault is not None))
        return fault


class _WatchedPort:
    """A wrapper that sends watched methods through `PortCalls` and all other attributes directly to the port."""

    def __init__(self, calls: PortCalls, name: str, port: object, methods: frozenset[str]) -> None:
        self._calls = calls
        self._name = name
        self._port = port
        self._methods = methods

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        if attribute not in self._methods:
            return found
        if inspect.iscoroutinefunction(found):
            return functools.partial(self._call, attribute, found)
        return functools.partial(self._stream, attribute, found)

    async def _call(self, method: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        fault = self._calls.begin(self._name, method)
        await _suspend()
        if fault is not None and not fault.after_effect:
            raise _error_of(fault)
        result = await call(*args, **kwargs)
        # The effect has happened, and the caller does not know it yet.
        await _suspend()
        if fault is not None:
            raise _error_of(fault)
        return result

    async def _stream(
        self, method: str, call: Callable[..., AsyncIterator[Any]], *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Iterate over a stream. A fault ends it at once or, if `after_effect`, after the first item or at its end."""
        fault = self._calls.begin(self._name, method)
        await _suspend()
        if fault is not None and not fault.after_effect:
            raise _error_of(fault)
        async for item in call(*args, **kwargs):
            await _suspend()
            yield item
            if fault is not None:
                break
        if fault is not None:
            raise _error_of(fault)


async def _suspend() -> None:
    if not AT_ONCE.get():
        await asyncio.sleep(0)


def _error_of(fault: InjectedFault) -> Exception:
    message = f"cannot {fault.call.method}: a fault was injected"
    match fault.error:
        case kind if issubclass(kind, GiveUp):
            return kind(message, "Injected")
        case kind:
            return kind(message)


def is_allowed(error: BaseException, injected: Sequence[type[Exception]] = ()) -> bool:
    """Return whether an operation may raise this error: an AgentError, an injected error or a group of these."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_allowed(each, injected) for each in error.exceptions)
    return isinstance(error, (AgentError, *injected))
