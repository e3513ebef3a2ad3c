"""`podkeeper ps`: the pods of this machine's agent, in a table as kubectl prints it, and why each is as it is."""

import json
import shutil
import sys

import click

from podkeeper.app.cli.asking import asks, table
from podkeeper.app.local.client import TABLE_ACCEPTED, Json, LocalClient


@click.command()
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="More columns, or the objects.")
@asks
def ps(output: str | None, client: LocalClient) -> None:
    """List the pods, how they are, and why."""
    if output in ("json", "yaml"):
        click.echo(_written(client.get("pods"), output), nl=False)
        return
    found = client.get("pods", accept=TABLE_ACCEPTED)
    if not found["rows"]:
        click.echo("No pods. The agent waits for manifests.")
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and output != "wide" else None
    for line in _lines(found, wide=output == "wide"):
        click.echo(line if width is None or len(line) <= width else line[: width - 3] + "...")


def _lines(found: Json, *, wide: bool) -> list[str]:
    shown = [index for index, column in enumerate(found["columnDefinitions"]) if wide or not column.get("priority")]
    heading = [found["columnDefinitions"][index]["name"].upper() for index in shown]
    return list(table([heading, *([str(row["cells"][index]) for index in shown] for row in found["rows"])]))


def _written(found: Json, how: str) -> str:
    if how == "json":
        return json.dumps(found, indent=4, ensure_ascii=False) + "\n"
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True))
