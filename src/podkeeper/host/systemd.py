"""Systemd over D-Bus: start, change and stop units, as cgroups need it.

    Systemd.open() -> start_transient, start, set_properties, stop, is_active

Root uses systemd's private socket, which needs no bus daemon. Other users, or root if the private socket does not work,
use the system bus. A call that starts a job (start, stop) returns at the end of the job, which systemd reports by a
signal. When systemd re-executes itself (`systemctl daemon-reexec`), the connection breaks. The next call connects
again, and a call without a reply is repeated, because all calls are idempotent. If the signal of a running job is lost,
the state of the unit is polled instead.

Counterparts: opencontainers/cgroups/systemd/{common,dbus}.go and coreos/go-systemd/dbus, which the kubelet uses.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from podkeeper.host.dbus import DBusConnection, DBusError, Values, connect
from podkeeper.model.errors import TryLater
from podkeeper.rules.cgroup.slice_limits import Property

PRIVATE_SOCKET: Final = "/run/systemd/private"
BUS_SOCKET: Final = "/run/dbus/system_bus_socket"

CALL_SECONDS: Final = 30.0  # systemd does not reply while it reloads many units
# As opencontainers/cgroups waits for a unit.
JOB_SECONDS: Final = 30.0
RECONNECT_SECONDS: Final = 10.0  # for a systemd that re-executes itself
_PAUSE_SECONDS: Final = 0.05
_VERBS: Final = {"StartTransientUnit": "start", "StartUnit": "start", "StopUnit": "stop"}

_NAME: Final = "org.freedesktop.systemd1"
_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = (_NAME, _PATH, f"{_NAME}.Manager")
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_BUS: Final = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_JOB_REMOVED: Final = f"{_NAME}.Manager.JobRemoved"
_UNKNOWN_UNIT: Final = (f"{_NAME}.NoSuchUnit", f"{_NAME}.LoadFailed")
_UNIT_EXISTS: Final = f"{_NAME}.UnitExists"

_ACTIVE: Final = ("active", "reloading")
_INACTIVE: Final = ("inactive", "failed")


class NoSystemd(TryLater):
    """Systemd is not available."""


class Systemd:
    """The systemd of this machine. Calls can run concurrently. Each may raise TryLater."""

    def __init__(self, private: str | None = None, bus: str = BUS_SOCKET) -> None:
        """`private` is systemd's private socket, which is tried first. None: the default, only for root."""
        self._private = private if private is not None else PRIVATE_SOCKET if os.geteuid() == 0 else ""
        self._bus = bus
        self._connection: DBusConnection | None = None
        self._connecting = asyncio.Lock()
        self._jobs: dict[str, asyncio.Future[str]] = {}  # results of running jobs, by path
        self.version = 0

    @classmethod
    async def open(cls, private: str | None = None, bus: str = BUS_SOCKET) -> "Systemd":
        """Connect and read the version. Raises NoSystemd."""
        systemd = cls(private, bus)
        try:
            # Connect without retries, because a machine without systemd will not get one. `_call` retries a lost
            # connection.
            systemd._connection = await systemd._connect()
            answer = await systemd._call((_NAME, _PATH, _PROPERTIES), "Get", "ss", _MANAGER[2], "Version")
        except BaseException:
            await systemd.close()
            raise
        systemd.version = _number_in(answer[0][1])
        return systemd

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def start_transient(self, unit: str, properties: Sequence[Property]) -> bool:
        """Create and start a unit. Return False, and change nothing, if it exists."""
        try:
            await self._job(unit, _ACTIVE, "StartTransientUnit", "ssa(sv)a(sa(sv))", _encoded(properties), [])
        except DBusError as error:
            if error.name == _UNIT_EXISTS:
                return False
            raise _error(f"start {unit}", error) from error
        return True

    async def start(self, unit: str) -> None:
        """Start an existing unit. Starting an active unit is a no-op."""
        try:
            await self._job(unit, _ACTIVE, "StartUnit", "ss")
        except DBusError as error:
            raise _error(f"start {unit}", error) from error

    async def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change properties of a unit until the next boot."""
        try:
            await self._call(_MANAGER, "SetUnitProperties", "sba(sv)", unit, True, _encoded(properties))
        except DBusError as error:
            raise _error(f"change {unit}", error) from error

    async def stop(self, unit: str) -> None:
        """Stop a unit and its processes, and reset its failed state. An unknown unit counts as stopped."""
        try:
            await self._job(unit, _INACTIVE, "StopUnit", "ss")
            with contextlib.suppress(DBusError):  # the unit is not in the failed state, or no longer exists
                # systemd keeps a failed unit loaded until this call.
                await self._call(_MANAGER, "ResetFailedUnit", "s", unit)
        except DBusError as error:
            if error.name not in _UNKNOWN_UNIT:
                raise _error(f"stop {unit}", error) from error

    async def is_active(self, unit: str) -> bool:
        """Return whether a unit is active. An unknown unit is not."""
        return await self.property(unit, "ActiveState") in _ACTIVE

    async def property(self, unit: str, name: str, kind: str = "Unit") -> Any:
        """Return a property of a unit. `kind` "Slice" has the properties that only slices have."""
        target = (_NAME, f"{_PATH}/unit/{_as_label(unit)}", _PROPERTIES)
        try:
            return (await self._call(target, "Get", "ss", f"{_NAME}.{kind}", name))[0][1]
        except DBusError as error:
            raise _error(f"inspect {unit}", error) from error

    # ---- jobs ----

    async def _job(self, unit: str, wanted: Sequence[str], method: str, signature: str, *more: Any) -> None:
        """Call a method that starts a job, and wait for the end of the job. Raises DBusError, TryLater."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        # Register before the next message, because the signal of the job's end may directly follow the reply.
        def register(reply: Values) -> None:
            self._jobs[reply[0]] = ended

        (job,) = await self._call(_MANAGER, method, signature, unit, "replace", *more, on_reply=register)
        try:
            async with asyncio.timeout(JOB_SECONDS):
                result = await ended
                if not result:  # the connection broke: the job continues, but its signal is lost
                    while await self.property(unit, "ActiveState") not in wanted:
                        await asyncio.sleep(_PAUSE_SECONDS)
                    return
        except TimeoutError:
            raise TryLater(
                f"cannot {_VERBS[method]} {unit}: the job of systemd did not end in {JOB_SECONDS:g} s"
            ) from None
        finally:
            self._jobs.pop(job, None)
        if result != "done":
            raise TryLater(f"cannot {_VERBS[method]} {unit}: the job of systemd ended with {result!r}")

    def _on_signal(self, signal: str, values: Values) -> None:
        if signal == _JOB_REMOVED:
            _, job, _, result = values
            if (ended := self._jobs.get(job)) is not None and not ended.done():
                ended.set_result(result)

    def _on_lost(self) -> None:
        """Wake all callers that wait for a job, because its signal is lost."""
        for ended in self._jobs.values():
            if not ended.done():
                ended.set_result("")

    # ---- calls ----

    async def _call(
        self,
        target: tuple[str, str, str],
        method: str,
        signature: str,
        *values: Any,
        on_reply: Callable[[Values], None] | None = None,
    ) -> Values:
        """Call a method, and repeat it if the connection breaks. Raises DBusError, TryLater."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RECONNECT_SECONDS
        while True:
            try:
                connection = await self._connected()
                async with asyncio.timeout(CALL_SECONDS):
                    return await connection.call(target, method, signature, *values, on_reply=on_reply)
            except TimeoutError:
                raise NoSystemd(f"cannot use systemd: no reply to {method} in {CALL_SECONDS:g} s") from None
            except (ConnectionError, NoSystemd) as error:
                if loop.time() >= deadline:
                    raise error if isinstance(error, NoSystemd) else NoSystemd(f"cannot use systemd: {error}") from None
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _connected(self) -> DBusConnection:
        # Concurrent calls after a lost connection must not open one connection each.
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> DBusConnection:
        errors = []
        # The private socket first: it needs no bus daemon and no policy, and works while the bus restarts.
        for path in filter(None, (self._private, self._bus)):
            connection = None
            try:
                connection = await connect(path, self._on_signal, self._on_lost)
                # On its private socket, systemd accepts no Hello and sends all signals without a subscription.
                if path == self._bus:
                    async with asyncio.timeout(CALL_SECONDS):
                        await _register_with_bus(connection)
                return connection
            except (OSError, DBusError) as error:  # including TimeoutError
                errors.append(f"{path}: {getattr(error, 'strerror', '') or str(error) or 'no reply'}")
                if connection is not None:
                    connection.close()
        raise NoSystemd(f"cannot reach systemd: {'; '.join(errors)}")


async def _register_with_bus(connection: DBusConnection) -> None:
    """Send Hello and subscribe to the signals of ended jobs."""
    await connection.call(_BUS, "Hello")
    match = f"type='signal',sender='{_NAME}',path='{_PATH}',interface='{_MANAGER[2]}',member='JobRemoved'"
    await connection.call(_BUS, "AddMatch", "s", match)
    await connection.call(_MANAGER, "Subscribe")


def _encoded(properties: Sequence[Property]) -> list[tuple[str, tuple[str, Any]]]:
    return [(name, (kind, list(value) if isinstance(value, tuple) else value)) for name, (kind, value) in properties]


def _as_label(unit: str) -> str:
    """Return the name of a unit as it appears in its object path."""
    return re.sub(r"[^A-Za-z0-9]|^[0-9]", lambda found: f"_{ord(found[0]):02x}", unit)


def _number_in(version: str) -> int:
    """Return 252 for "252.38-1~deb12u1" and "v252", and 0 for a text without a number."""
    found = re.search(r"\d+", version)
    return int(found[0]) if found else 0


def _error(action: str, error: DBusError) -> TryLater:
    return TryLater(f"cannot {action}: systemd: {error}")
