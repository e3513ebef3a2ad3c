"""Systemd over the system bus and over its private socket, and peers that are not systemd."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from jeepney import DBusAddress, new_signal

from podkeeper.host.dbus import DBusConnection, DBusError, connect
from podkeeper.host.systemd import NoSystemd, Systemd
from podkeeper.ports.cgroups import Cgroups
from podkeeper.testing.contracts import name_of
from podkeeper.testing.contracts.cgroups import CGROUPS
from podkeeper.testing.contracts.contract import ContractCase
from tests.host import systemd_scenarios
from tests.host.booted import BootedSystemd

DAEMON = "/usr/bin/dbus-daemon"
SOCKET = """[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
"""
SERVICE = f"""[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
ExecStart={DAEMON} --config-file=/run/bus.conf --address=systemd: --nofork --nopidfile
"""
CONFIG = """<busconfig><type>system</type><listen>systemd:</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="*"/><allow receive_type="*"/></policy>
</busconfig>
"""


@pytest.fixture
def with_a_bus(systemd: BootedSystemd) -> Iterator[BootedSystemd]:
    """The booted systemd with a system bus."""
    if not os.path.exists(DAEMON):
        pytest.skip("dbus-daemon is missing: install the package dbus-daemon")
    files = {
        "/run/systemd/system/dbus.socket": SOCKET,
        "/run/systemd/system/dbus.service": SERVICE,
        "/run/bus.conf": CONFIG,
    }
    for path, text in files.items():
        systemd.run("sh", "-c", 'mkdir -p "$(dirname "$1")"; printf %s "$2" >"$1"', "sh", path, text)
    systemd.run("systemctl", "daemon-reload")
    systemd.run("systemctl", "start", "dbus.service")
    systemd.run_scenario(systemd_scenarios.systemd_is_on_the_bus)
    try:
        yield systemd
    finally:
        systemd.run("systemctl", "stop", "dbus.socket", "dbus.service")
        systemd.run("rm", *files)
        systemd.run("systemctl", "daemon-reload")


@pytest.mark.parametrize("scenario", CGROUPS.scenarios, ids=name_of)
def test_the_contract_holds_over_the_system_bus(with_a_bus: BootedSystemd, scenario: ContractCase[Cgroups]) -> None:
    with_a_bus.run_scenario(systemd_scenarios.contract_on_the_bus, scenario.__name__)


def test_the_bus_is_used_if_the_private_socket_fails(with_a_bus: BootedSystemd) -> None:
    with_a_bus.run_scenario(systemd_scenarios.the_bus_is_used_if_the_private_socket_fails)


def test_a_restart_of_the_bus_is_survived(with_a_bus: BootedSystemd) -> None:
    with_a_bus.run_scenario(systemd_scenarios.a_restart_of_the_bus_is_survived)


def test_errors_of_systemd_are_reported(systemd: BootedSystemd) -> None:
    systemd.run_scenario(systemd_scenarios.errors_of_systemd_are_reported)


# ---- no systemd ------------------------------------------------------------------------------


def test_missing_sockets_are_named(tmp_path: Path) -> None:
    private, bus = str(tmp_path / "private"), str(tmp_path / "bus")
    with pytest.raises(NoSystemd, match=rf"cannot reach systemd: {private}: No such file or directory; {bus}: No such"):
        asyncio.run(Systemd.open(private, bus))


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_peer(tmp_path: Path, handle: Handler, scenario: Callable[[str], Awaitable[None]]) -> None:
    """Run a scenario with a scripted peer on a socket."""
    path = str(tmp_path / "s")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    async def whole() -> None:
        server = await asyncio.start_unix_server(answer, path)
        async with server:
            await scenario(path)

    asyncio.run(whole())


async def authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"BEGIN\r\n")
    writer.write(b"OK 0123456789abcdef0123456789abcdef\r\n")
    await writer.drain()


async def connected(path: str) -> DBusConnection:
    return await connect(path, lambda signal, values: None, lambda: None)


TARGET = ("org.example", "/org/example", "org.example.It")


def test_a_rejected_authentication_is_reported(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"REJECTED EXTERNAL\r\n")
        await writer.drain()

    async def scenario(path: str) -> None:
        with pytest.raises(NoSystemd, match=r"Authentication failed.*REJECTED"):
            await Systemd.open(path, "")

    with_peer(tmp_path, handle, scenario)


def test_a_closed_connection_fails_pending_and_later_calls(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await authenticate(reader, writer)
        await reader.read(1)

    async def scenario(path: str) -> None:
        connection = await connected(path)
        with pytest.raises(ConnectionError):
            await connection.call(TARGET, "Do")
        with pytest.raises(ConnectionError, match="closed"):
            await connection.call(TARGET, "Do")
        assert not connection.is_open

    with_peer(tmp_path, handle, scenario)


def test_an_authentication_reply_may_arrive_in_parts_with_a_signal_behind_it(tmp_path: Path) -> None:
    received: list[tuple[str, tuple[str, ...]]] = []
    signal = new_signal(DBusAddress("/org/example", interface="org.example.It"), "Happened", "s", ("value",))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"BEGIN\r\n")
        writer.write(b"OK 0123")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"456789abcdef\r\n" + signal.serialise(1))
        await writer.drain()
        await reader.read()

    async def scenario(path: str) -> None:
        connection = await connect(path, lambda name, values: received.append((name, values)), lambda: None)
        async with asyncio.timeout(10):
            while not received:
                await asyncio.sleep(0.01)
        connection.close()

    with_peer(tmp_path, handle, scenario)
    assert received == [("org.example.It.Happened", ("value",))]


def test_invalid_data_closes_the_connection(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await authenticate(reader, writer)
        writer.write(b"this is not a D-Bus message. " * 10)
        await writer.drain()

    async def scenario(path: str) -> None:
        with pytest.raises(ConnectionError):
            await (await connected(path)).call(TARGET, "Do")

    with_peer(tmp_path, handle, scenario)


def test_a_dbus_error_has_a_name_and_a_message() -> None:
    assert (DBusError("org.example.No", "").name, str(DBusError("org.example.No", ""))) == ("org.example.No",) * 2
    assert str(DBusError("org.example.No", "denied")) == "denied"


def test_dbus_is_imported_only_for_the_systemd_driver() -> None:
    code = "import sys, podkeeper.app.containers, podkeeper.app.cli.doctor_checks; sys.exit('jeepney' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
