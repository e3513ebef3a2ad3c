"""`podkeeper doctor`: what this machine offers to pods, what it does not, and how to get that."""

import click


@click.command()
@click.option(
    "--runtime-endpoint", metavar="SOCKET", default="",
    help="A container runtime's socket [that of containerd or CRI-O, whichever is there].",
)  # fmt: skip
def doctor(runtime_endpoint: str) -> None:
    """Look at this machine: what pods can have here, and how to get what is missing.

    The exit status is 1 only when no pod can run at all.
    """
    from podkeeper.app.cli.checkup import checkup
    from podkeeper.app.cli.findings import Mark

    findings = checkup(runtime_endpoint)
    width = max(len(finding.what) for finding in findings)
    signs = {Mark.GOOD: "ok  ", Mark.WEAK: "weak", Mark.MISSING: "none", Mark.FATAL: "FAIL"}
    for finding in findings:
        click.echo(f"{signs[finding.mark]}  {finding.what:{width}}  {finding.found}")
        for hint in finding.hints:
            click.echo(f"      {'':{width}}  -> {hint}")
    fatal = [finding.what for finding in findings if finding.mark is Mark.FATAL]
    click.echo()
    if fatal:
        click.echo(f"No pod can run here: {', '.join(fatal)}.")
        raise SystemExit(1)
    click.echo("Pods can run here: 'podkeeper run examples' runs some.")
