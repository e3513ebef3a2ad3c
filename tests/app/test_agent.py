"""The interface of an agent: what a graceful exit sends first, and the problems that it reports."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine
from podkeeper.testing.virtual_time import simulate


def agent_of(**modules: object) -> Agent:
    """Return an agent whose engine has only these modules."""
    return Agent(cast(Engine, SimpleNamespace(**modules)))


def test_before_a_graceful_exit_all_statuses_are_sent_and_then_the_events() -> None:
    sent: list[str] = []

    async def sync_batch(*, every: bool) -> None:
        await asyncio.sleep(1)
        sent.append(f"statuses, every pod is checked: {every}")

    async def flush() -> None:
        await asyncio.sleep(1)
        sent.append("events")

    agent = agent_of(statuses=SimpleNamespace(sync_batch=sync_batch), events=SimpleNamespace(flush=flush))
    simulate(agent.flush(within_seconds=5))
    assert sent == ["statuses, every pod is checked: True", "events"]


def test_a_graceful_exit_waits_for_no_api_that_hangs() -> None:
    async def sync_batch(*, every: bool) -> None:
        await asyncio.Event().wait()

    agent = agent_of(statuses=SimpleNamespace(sync_batch=sync_batch))
    assert simulate(agent.flush(within_seconds=5))[1] == 5


@pytest.mark.parametrize(
    "loop, pleg, problems",
    [(None, None, ()), ("a", None, ("a",)), (None, "b", ("b",)), ("a", "b", ("a", "b"))],
)
def test_the_problems_of_the_loop_and_of_the_observation_are_reported(
    loop: str | None, pleg: str | None, problems: tuple[str, ...]
) -> None:
    agent = agent_of(loop=SimpleNamespace(health=lambda: loop), pleg=SimpleNamespace(health=lambda: pleg))
    assert agent.health() == problems
