"""`podkeeper explain POD`: where a pod stands, since when, what it waits for, when it is tried again, and how so."""

import sys
from typing import TYPE_CHECKING

import click

from podkeeper.app.cli.asking import asks, complete_pod, identity, pod_named
from podkeeper.app.local.client import Json, LocalClient

if TYPE_CHECKING:
    from podkeeper.engine.history import Entry

_PLAIN_WIDTH = 120


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.option("--json", "as_json", is_flag=True, help="As one JSON document.")
@asks
def explain(pod: str, as_json: bool, client: LocalClient) -> None:
    """Tell how a pod came to be as it is, with the timeline of its life."""
    found = pod_named(client, pod)
    explained = client.get("explain", *identity(found))
    if as_json:
        import json

        click.echo(json.dumps(explained, indent=2))
        return
    _draw(found, explained)


def _local(entry: "Entry") -> "Entry":
    """An entry in the time of this place."""
    from dataclasses import replace

    return replace(entry, at=entry.at.astimezone(), last_at=entry.last_at and entry.last_at.astimezone())


def _draw(pod: Json, explained: Json) -> None:
    import msgspec
    from rich.console import Console

    from podkeeper.app.timeline import Noted, span, timeline
    from podkeeper.engine.history import Explanation

    told = msgspec.convert(explained, Explanation)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    plain = not console.encoding.startswith("utf")
    since = "" if told.since is None else f" for {span(told.asked_at - told.since)}"
    console.print(f"pod {'/'.join(identity(pod))}", style="bold")
    console.print(f"  state        {told.state}{since}")
    if told.waiting_for:
        console.print(f"  waiting for  {told.waiting_for}", soft_wrap=True)
    if told.next_retry is not None:
        console.print(f"  next look    in {span(told.next_retry - told.asked_at)}")
    console.print()
    noted = tuple(Noted(_local(entry), 1) for entry in told.timeline)
    console.print(timeline(identity(pod)[1], noted, told, plain=plain))
