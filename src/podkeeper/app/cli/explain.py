"""`podkeeper explain POD`: show a pod's state, next retry and timeline."""

import sys
from typing import TYPE_CHECKING

import click

from podkeeper.app.cli.agent_requests import complete_pod, display_name, get_pod, identity, with_client
from podkeeper.app.local.client import TABLE_ACCEPTED, Json, LocalClient

if TYPE_CHECKING:
    from podkeeper.app.history_words import PrintedEntry, PrintedExplanation

_PLAIN_WIDTH = 120
_MEANINGS = {
    "waiting": "waits until its predecessor has stopped",
    "syncing": "starts and restarts containers according to the spec",
    "termination requested": "will be stopped",
    "terminating": "stops the containers",
    "terminated": "has stopped, cleanup is in progress",
    "finished": "has stopped and is cleaned up",
}


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@with_client
def explain(pod: str, as_json: bool, client: LocalClient) -> None:
    """Show why a pod is in its state, with a timeline.

    Prints the state of the pod in the agent, the reason for waiting, and the next retry. For the fields and events of
    the pod, use 'podkeeper describe'.

    Example: podkeeper explain crash
    """
    found = get_pod(client, pod)
    explained = client.get("explain", *identity(found))
    if as_json:
        import json

        click.echo(json.dumps(explained, indent=2))
        return
    _draw(found, explained, _row_of(found, client))


def _row_of(pod: Json, client: LocalClient) -> dict[str, str]:
    """Return the pod's row of `podkeeper ps` by column."""
    table = client.get("pods", accept=TABLE_ACCEPTED)
    columns = [column["name"] for column in table["columnDefinitions"]]
    rows = (dict(zip(columns, row["cells"], strict=True)) for row in table["rows"])
    return next((row for row in rows if row["Pod"] == display_name(pod)), {})


def _local(entry: "PrintedEntry") -> "PrintedEntry":
    """Convert an entry's times to the local time zone."""
    from dataclasses import replace

    return replace(entry, at=entry.at.astimezone(), last_at=entry.last_at and entry.last_at.astimezone())


def _draw(pod: Json, explained: Json, row: dict[str, str]) -> None:
    import msgspec
    from rich.console import Console

    from podkeeper.app.history_words import PrintedExplanation
    from podkeeper.app.timeline import Noted, timeline

    explanation = msgspec.convert(explained, PrintedExplanation)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    plain = not console.encoding.startswith("utf")
    console.print(f"pod {'/'.join(identity(pod))}", style="bold")
    for heading, text in _facts(pod, explanation, row):
        console.print(f"  {heading:11}  {text}", soft_wrap=True)
    console.print()
    noted = tuple(Noted(_local(entry), 1) for entry in explanation.timeline)
    console.print(timeline(identity(pod)[1], noted, explanation, plain=plain))


def _facts(pod: Json, explanation: "PrintedExplanation", row: dict[str, str]) -> "list[tuple[str, str]]":
    from podkeeper.app.timeline import span
    from podkeeper.model.history import WorkerState

    facts = []
    if row:
        facts.append(("status", f"{row['Status']}, ready {row['Ready']}, restarts {row['Restarts']}"))
    if row.get("Why"):
        facts.append(("why", row["Why"]))
    if explanation.state != WorkerState.UNKNOWN:
        since = "" if explanation.since is None else f" for {span(explanation.asked_at - explanation.since)}"
        meaning = _MEANINGS.get(explanation.state.partition(" (")[0])
        facts.append(("state", f"{explanation.state}{since}" + (f": {meaning}" if meaning else "")))
    if explanation.waiting_for:
        facts.append(("waiting for", explanation.waiting_for))
    if explanation.next_retry is not None:
        facts.append(("next sync", f"in {span(explanation.next_retry - explanation.asked_at)}"))
    facts += [("container", _container(each)) for each in _statuses(pod)]
    return facts


def _statuses(pod: Json) -> list[Json]:
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return [each for kind in kinds for each in pod["status"].get(kind) or ()]


def _container(status: Json) -> str:
    """Describe a container's state and its last state."""
    text = f"{status['name']}: {_state(status.get('state') or {})}"
    before = _state(status.get("lastState") or {})
    return f"{text}; last state: {before}" if before else text


def _state(state: Json) -> str:
    if (running := state.get("running")) is not None:
        return f"running since {running.get('startedAt', '')}"
    if (ended := state.get("terminated")) is not None:
        reason = ended.get("reason", "")
        return f"terminated ({reason}), exit code {ended['exitCode']}, at {ended.get('finishedAt', '')}"
    if (waiting := state.get("waiting")) is not None:
        return f"waiting ({waiting.get('reason', '')})"
    return ""
