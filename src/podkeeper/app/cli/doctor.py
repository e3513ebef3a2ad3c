"""`podkeeper doctor`: check which features this machine supports."""

import click


@click.command()
@click.option(
    "--runtime-endpoint", metavar="SOCKET", default="",
    help="Socket of the container runtime to check [default: containerd or CRI-O, if running].",
)  # fmt: skip
def doctor(runtime_endpoint: str) -> None:
    """Check which features this machine supports.

    Lists namespaces, cgroups, the container runtime and other features, with a hint for each missing one.

    The exit status is 1 if this machine cannot run any pod, otherwise 0.
    """
    from podkeeper.app.cli.doctor_checks import run_checks
    from podkeeper.app.cli.doctor_findings import Mark

    findings = run_checks(runtime_endpoint)
    width = max(len(finding.what) for finding in findings)
    signs = {Mark.GOOD: "ok  ", Mark.WEAK: "weak", Mark.MISSING: "none", Mark.FATAL: "FAIL"}
    for finding in findings:
        click.echo(f"{signs[finding.mark]}  {finding.what:{width}}  {finding.found}")
        for hint in finding.hints:
            click.echo(f"      {'':{width}}  -> {hint}")
    fatal = [finding.what for finding in findings if finding.mark is Mark.FATAL]
    click.echo()
    if fatal:
        click.echo(f"This machine cannot run pods: {', '.join(fatal)}.")
        raise SystemExit(1)
    click.echo("This machine can run pods. Try 'podkeeper run examples'.")
