"""`podkeeper ps`: list pods with the reason of each status."""

import json
import shutil
import sys

import click

from podkeeper.app.cli.agent_requests import complete_pod, display_name, get_pod, identity, table, with_client
from podkeeper.app.local.client import TABLE_ACCEPTED, Json, LocalClient


@click.command()
@click.argument("pods", nargs=-1, shell_complete=complete_pod)
@click.option(
    "-o", "--output", type=click.Choice(["wide", "name", "json", "yaml"]),
    help="Output format [default: a table].",
)  # fmt: skip
@with_client
def ps(pods: tuple[str, ...], output: str | None, client: LocalClient) -> None:
    """List pods with their status and its reason.

    Lists all pods by default. The column WHY shows the reason for the status.

    \b
    Examples:
      podkeeper ps
      podkeeper ps -o wide web job
      podkeeper ps -o json | jq '.items[].status.phase'
    """
    requested = [get_pod(client, name) for name in pods]
    if output in ("json", "yaml", "name"):
        click.echo(_formatted({**client.get("pods"), **({"items": requested} if pods else {})}, output), nl=False)
        return
    found = client.get("pods", accept=TABLE_ACCEPTED)
    if not found["rows"]:
        click.echo("No pods found. The agent watches for manifests.")
        return
    if pods:
        names = {display_name(pod) for pod in requested}
        found["rows"] = [row for row in found["rows"] if row["cells"][0] in names]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and output != "wide" else None
    for line in _lines(found, wide=output == "wide"):
        click.echo(line if width is None or len(line) <= width else line[: width - 3] + "...")


def _lines(found: Json, *, wide: bool) -> list[str]:
    shown = [index for index, column in enumerate(found["columnDefinitions"]) if wide or not column.get("priority")]
    heading = [found["columnDefinitions"][index]["name"].upper() for index in shown]
    return list(table([heading, *([str(row["cells"][index]) for index in shown] for row in found["rows"])]))


def _formatted(found: Json, output: str) -> str:
    if output == "name":
        return "".join(f"{identity(pod)[1]}\n" for pod in found["items"])
    if output == "json":
        return json.dumps(found, indent=4, ensure_ascii=False) + "\n"
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True))
