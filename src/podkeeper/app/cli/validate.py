"""`podkeeper validate PATH...`: check manifests and report errors."""

import json
import socket
from pathlib import Path

import click

from podkeeper.app.cli.manifests import NODE_NAME_HELP, ManifestSet, read_manifests
from podkeeper.model.errors import Problem


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.option("--strict", is_flag=True, help="Report unknown fields as errors [default: as warnings].")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Output format [default: text].")
@click.option("--node-name", metavar="NAME", default=lambda: socket.gethostname().lower(), help=NODE_NAME_HELP)
def validate(paths: tuple[Path, ...], strict: bool, output: str | None, node_name: str) -> None:
    """Check manifests and report all errors.

    PATHS are files, directories, or - for stdin. Reads the same files as 'podkeeper run', but runs no pod.

    \b
    Examples:
      podkeeper validate pods/
      cat web.yaml | podkeeper validate -
      podkeeper validate -o json pods/ | jq .problems

    \b
    Exit status:
      0  all manifests are valid
      1  a manifest has errors
      2  invalid command line
    """
    found = read_manifests(paths, node_name)
    count = len(found.problems) + (len(found.warnings) if strict else 0)
    if output == "json":
        click.echo(json.dumps(_document(found, strict=strict), indent=2))
    else:
        _print(found, count, strict=strict)
    raise SystemExit(1 if count else 0)


def _print(found: ManifestSet, count: int, *, strict: bool) -> None:
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    for warning in found.warnings:
        click.echo(f"{'error' if strict else 'warning'}: {warning}", err=True)
    good = f"{_plural(len(found.pods), 'valid pod')}, {_plural(len(found.others), 'other valid object')}"
    none = "" if found.files else "; no manifests found"
    click.echo(f"{good}, {_plural(count, 'error')}" if count else good + none)


def _document(found: ManifestSet, *, strict: bool) -> dict[str, object]:
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
