"""`podkeeper validate PATH...`: name every problem in manifests, each with file, line and field."""

from pathlib import Path

import click

from podkeeper.app.cli.manifests import find


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--strict", is_flag=True, help="Fields that no kind knows are errors, not warnings.")
def validate(paths: tuple[Path, ...], strict: bool) -> None:
    """Check manifests (files or folders) and name all problems; nothing is run."""
    found = find(paths, node_name="node")
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    for warning in found.warnings:
        click.echo(f"{'error' if strict else 'warning'}: {warning}", err=True)
    count = len(found.problems) + (len(found.warnings) if strict else 0)
    good = f"{_plural(len(found.pods), 'pod')} and {_plural(len(found.others), 'other object')} can be used"
    click.echo(f"{good}; {_plural(count, 'problem')} to mend" if count else good)
    raise SystemExit(1 if count else 0)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
