"""Scenarios of systemd calls that run inside a booted systemd (`tests/host/booted.py`): errors and the system bus."""

import asyncio
from typing import Any

import pytest

from podkeeper.host.systemd import BUS_SOCKET, NoSystemd, Systemd
from podkeeper.model.errors import TryLater
from podkeeper.model.pods import uid_of
from podkeeper.testing.contracts.cgroups import CGROUPS
from tests.host.pods import BURSTABLE, GUARANTEED
from tests.host.slice_harness import slice_harness, systemctl


async def systemd_is_on_the_bus() -> None:
    """Wait until systemd has connected to a new bus."""
    async with asyncio.timeout(10):
        while True:
            try:
                await (await Systemd.open("", BUS_SOCKET)).close()
                return
            except NoSystemd:
                await asyncio.sleep(0.02)


async def contract_on_the_bus(name: str) -> None:
    """One scenario of the contract, over the system bus."""
    (scenario,) = (each for each in CGROUPS.scenarios if each.__name__ == name)
    async with slice_harness(private="", bus=BUS_SOCKET) as here:
        await scenario(here.slices)


async def a_restart_of_the_bus_is_survived() -> None:
    async with slice_harness(private="", bus=BUS_SOCKET) as here:
        await here.slices.ensure(BURSTABLE)
        await asyncio.to_thread(systemctl, "restart", "dbus.service")
        await here.slices.ensure(GUARANTEED)
        assert await here.slices.list_pods() == {uid_of(BURSTABLE), uid_of(GUARANTEED)}


async def the_bus_is_used_if_the_private_socket_fails() -> None:
    async with slice_harness(private="/nowhere/private", bus=BUS_SOCKET) as here:
        await here.slices.ensure(BURSTABLE)
        assert await here.slices.list_pods() == {uid_of(BURSTABLE)}


async def errors_of_systemd_are_reported() -> None:
    systemd = await Systemd.open(bus="")
    try:
        assert systemd.version >= 200
        assert not await systemd.is_active("unknown.slice")
        await systemd.stop("unknown.slice")
        for unit, properties, message in (
            ("no-suffix", [], "cannot start no-suffix: systemd: Invalid unit name"),
            ("bad.slice", [("MemoryMax", ("s", "much"))], "cannot start bad.slice: systemd: "),
            ("bad.slice", [("NoSuchThing", ("b", True))], "cannot start bad.slice: systemd: .*NoSuchThing"),
        ):
            invalid: Any = properties
            with pytest.raises(TryLater, match=message):
                await systemd.start_transient(unit, invalid)
        with pytest.raises(TryLater, match=r"cannot change bad\.slice: systemd: "):
            await systemd.set_properties("bad.slice", [("NoSuchThing", ("b", True))])
        with pytest.raises(TryLater, match=r"cannot start unknown\.service: systemd: .*not found"):
            await systemd.start("unknown.service")
    finally:
        await systemd.close()
