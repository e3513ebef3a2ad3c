"""Systemd, as far as cgroups need it: slices are started, changed and stopped by it, over D-Bus.

    Systemd.open() -> start_transient, start, set_properties, stop, is_active

As root it is asked on its own socket, which needs no bus daemon; else, or where that does not answer, on the system
bus. A job (starting, stopping) has ended when the call returns: systemd tells so by a signal. The connection breaks
whenever systemd starts itself anew (`systemctl daemon-reexec`): the next call makes another one, and a call that lost
its answer is made again; what it began already is found to be there. A job whose end nobody can tell us of any more is
looked after.

The Go ancestors are opencontainers/cgroups/systemd/{common,dbus}.go and coreos/go-systemd/dbus.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from podkeeper.host.dbus import Connection, Refused, Values, connected
from podkeeper.model.errors import TryLater
from podkeeper.rules.slice_limits import Property

PRIVATE_SOCKET: Final = "/run/systemd/private"
BUS_SOCKET: Final = "/run/dbus/system_bus_socket"

CALL_SECONDS: Final = 30.0  # a reload of many units takes its time
JOB_SECONDS: Final = 30.0
AWAY_SECONDS: Final = 10.0  # how long systemd may take to start itself anew
_PAUSE_SECONDS: Final = 0.05

_NAME: Final = "org.freedesktop.systemd1"
_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = (_NAME, _PATH, f"{_NAME}.Manager")
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_BUS: Final = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_JOB_REMOVED: Final = f"{_NAME}.Manager.JobRemoved"
_UNKNOWN: Final = (f"{_NAME}.NoSuchUnit", f"{_NAME}.LoadFailed")
_THERE: Final = f"{_NAME}.UnitExists"

_ACTIVE: Final = ("active", "reloading")
_ENDED: Final = ("inactive", "failed")


class NoSystemd(TryLater):
    """Systemd does not answer."""


class Systemd:
    """The systemd of this machine. All calls may be made at once; each raises TryLater."""

    def __init__(self, private: str | None = None, bus: str = BUS_SOCKET) -> None:
        """`private` is systemd's own socket, tried first; None: the usual one, which is for root alone."""
        self._private = private if private is not None else PRIVATE_SOCKET if os.geteuid() == 0 else ""
        self._bus = bus
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._jobs: dict[str, asyncio.Future[str]] = {}  # by path: how a job ended
        self.version = 0

    @classmethod
    async def open(cls, private: str | None = None, bus: str = BUS_SOCKET) -> "Systemd":
        """Find it, and ask for its version. Raises NoSystemd."""
        systemd = cls(private, bus)
        try:
            # Nobody there is a reason to give up at once; only who was there may be expected to come back.
            systemd._connection = await systemd._connect()
            answer = await systemd._call((_NAME, _PATH, _PROPERTIES), "Get", "ss", _MANAGER[2], "Version")
        except BaseException:
            await systemd.close()
            raise
        systemd.version = _number_in(answer[0][1])
        return systemd

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()

    async def start_transient(self, unit: str, properties: Sequence[Property]) -> bool:
        """Make a unit and start it; False: it is there already, and nothing was changed."""
        try:
            await self._job(unit, _ACTIVE, "StartTransientUnit", "ssa(sv)a(sa(sv))", _wired(properties), [])
        except Refused as error:
            if error.name == _THERE:
                return False
            raise _trouble(f"start {unit}", error) from error
        return True

    async def start(self, unit: str) -> None:
        """Start a unit that is there; nothing happens if it runs."""
        try:
            await self._job(unit, _ACTIVE, "StartUnit", "ss")
        except Refused as error:
            raise _trouble(f"start {unit}", error) from error

    async def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change a unit, until the machine is started anew."""
        try:
            await self._call(_MANAGER, "SetUnitProperties", "sba(sv)", unit, True, _wired(properties))
        except Refused as error:
            raise _trouble(f"change {unit}", error) from error

    async def stop(self, unit: str) -> None:
        """Stop a unit, and what is in it; unknown is stopped. A failure is forgotten with it."""
        try:
            await self._job(unit, _ENDED, "StopUnit", "ss")
            with contextlib.suppress(Refused):  # it has not failed, then, or is gone
                await self._call(_MANAGER, "ResetFailedUnit", "s", unit)
        except Refused as error:
            if error.name not in _UNKNOWN:
                raise _trouble(f"stop {unit}", error) from error

    async def is_active(self, unit: str) -> bool:
        """Whether a unit runs; unknown does not."""
        return await self.property(unit, "ActiveState") in _ACTIVE

    async def property(self, unit: str, name: str, kind: str = "Unit") -> Any:
        """What systemd says of a unit; a slice has more to say as a "Slice"."""
        where = (_NAME, f"{_PATH}/unit/{_as_label(unit)}", _PROPERTIES)
        try:
            return (await self._call(where, "Get", "ss", f"{_NAME}.{kind}", name))[0][1]
        except Refused as error:
            raise _trouble(f"look at {unit}", error) from error

    # ---- jobs ----

    async def _job(self, unit: str, wanted: Sequence[str], method: str, signature: str, *more: Any) -> None:
        """Ask for something that takes a job, and wait for its end. Raises Refused, TryLater."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def note(answer: Values) -> None:  # at once: the news of its end may come in the same breath
            self._jobs[answer[0]] = ended

        (job,) = await self._call(_MANAGER, method, signature, unit, "replace", *more, answered=note)
        try:
            async with asyncio.timeout(JOB_SECONDS):
                result = await ended
                if not result:  # the connection broke: jobs outlive that, the news of their end does not
                    while await self.property(unit, "ActiveState") not in wanted:
                        await asyncio.sleep(_PAUSE_SECONDS)
                    return
        except TimeoutError:
            raise TryLater(f"cannot have {unit} as it should be: systemd did not do it in {JOB_SECONDS:g} s") from None
        finally:
            self._jobs.pop(job, None)
        if result != "done":
            raise TryLater(f"cannot have {unit} as it should be: systemd's job ended as {result!r}")

    def _hear(self, signal: str, values: Values) -> None:
        if signal == _JOB_REMOVED:
            _, job, _, result = values
            if (ended := self._jobs.get(job)) is not None and not ended.done():
                ended.set_result(result)

    def _lose(self) -> None:
        """Nobody tells us any more how the jobs under way end."""
        for ended in self._jobs.values():
            if not ended.done():
                ended.set_result("")

    # ---- calls ----

    async def _call(
        self,
        where: tuple[str, str, str],
        method: str,
        signature: str,
        *values: Any,
        answered: Callable[[Values], None] | None = None,
    ) -> Values:
        """Call, and once more where the connection broke: all calls may be repeated. Raises Refused, TryLater."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AWAY_SECONDS
        while True:
            try:
                connection = await self._connected()
                async with asyncio.timeout(CALL_SECONDS):
                    return await connection.call(where, method, signature, *values, answered=answered)
            except TimeoutError:
                raise NoSystemd(f"cannot use systemd: it did not answer {method} in {CALL_SECONDS:g} s") from None
            except (ConnectionError, NoSystemd) as error:
                if loop.time() >= deadline:
                    raise error if isinstance(error, NoSystemd) else NoSystemd(f"cannot use systemd: {error}") from None
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        troubles = []
        for path in filter(None, (self._private, self._bus)):
            connection = None
            try:
                connection = await connected(path, self._hear, self._lose)
                if path == self._bus:
                    async with asyncio.timeout(CALL_SECONDS):
                        await _introduce(connection)
                return connection
            except (OSError, Refused) as error:  # TimeoutError among them
                troubles.append(f"{path}: {getattr(error, 'strerror', '') or str(error) or 'no answer'}")
                if connection is not None:
                    connection.close()
        raise NoSystemd(f"cannot reach systemd: {'; '.join(troubles)}")


async def _introduce(connection: Connection) -> None:
    """Become known to a bus, and be told there when jobs end."""
    await connection.call(_BUS, "Hello")
    match = f"type='signal',sender='{_NAME}',path='{_PATH}',interface='{_MANAGER[2]}',member='JobRemoved'"
    await connection.call(_BUS, "AddMatch", "s", match)
    await connection.call(_MANAGER, "Subscribe")


def _wired(properties: Sequence[Property]) -> list[tuple[str, tuple[str, Any]]]:
    return [(name, (kind, list(value) if isinstance(value, tuple) else value)) for name, (kind, value) in properties]


def _as_label(unit: str) -> str:
    """A unit's name within the path of its object."""
    return re.sub(r"[^A-Za-z0-9]|^[0-9]", lambda found: f"_{ord(found[0]):02x}", unit)


def _number_in(version: str) -> int:
    """252 of "252.38-1~deb12u1", "v252"; 0: there is none."""
    found = re.search(r"\d+", version)
    return int(found[0]) if found else 0


def _trouble(deed: str, error: Refused) -> TryLater:
    return TryLater(f"cannot {deed}: systemd says: {error}")
