"""`podkeeper validate PATH...`: name every problem in manifests, each with file, line and field."""

import json
import socket
from pathlib import Path

import click

from podkeeper.app.cli.manifests import Found, find
from podkeeper.model.errors import Problem


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.option("--strict", is_flag=True, help="Fields that no kind knows are errors, not warnings.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="As one JSON document.")
@click.option("--node-name", default=lambda: socket.gethostname().lower(), help="The node's name [this host's name].")
def validate(paths: tuple[Path, ...], strict: bool, output: str | None, node_name: str) -> None:
    """Check manifests (files, folders, or - for stdin) and name all problems; nothing is run.

    Files are found and read as 'podkeeper run' does it.

    \b
    Examples:
      podkeeper validate pods/
      cat web.yaml | podkeeper validate -
      podkeeper validate -o json pods/ | jq .problems

    Exit status: 0 when all can be used, 1 when there is a problem, 2 when the command was not called as it should be.
    """
    found = find(paths, node_name)
    count = len(found.problems) + (len(found.warnings) if strict else 0)
    if output == "json":
        click.echo(json.dumps(_document(found, strict=strict), indent=2))
    else:
        _tell(found, count, strict=strict)
    raise SystemExit(1 if count else 0)


def _tell(found: Found, count: int, *, strict: bool) -> None:
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    for warning in found.warnings:
        click.echo(f"{'error' if strict else 'warning'}: {warning}", err=True)
    good = f"{_plural(len(found.pods), 'pod')} and {_plural(len(found.others), 'other object')} can be used"
    none = "" if found.files else "; no manifest was found"
    click.echo(f"{good}; {_plural(count, 'problem')} to mend" if count else good + none)


def _document(found: Found, *, strict: bool) -> dict[str, object]:
    return {
        "pods": len(found.pods),
        "otherObjects": len(found.others),
        "problems": [
            *(_row(problem, "error") for problem in found.problems),
            *(_row(problem, "error" if strict else "warning") for problem in found.warnings),
        ],
    }


def _row(problem: Problem, severity: str) -> dict[str, object]:
    return {
        "severity": severity,
        "file": problem.file,
        "line": problem.line or None,
        "field": problem.field,
        "message": problem.message,
    }


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
