"""`podkeeper describe POD...`: show details and events of pods in the format of `kubectl describe pod`."""

from datetime import UTC, datetime

import click

from podkeeper.app.cli.asking import asks, complete_pod, identity, pod_named
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pods", nargs=-1, required=True, shell_complete=complete_pod)
@asks
def describe(pods: tuple[str, ...], client: LocalClient) -> None:
    """Show details and events of pods.

    Example: podkeeper describe web
    """
    import msgspec

    from podkeeper.app.cli.describing import describe_pod
    from podkeeper.model.k8s.core import EventList, Pod

    for number, found in enumerate([pod_named(client, name) for name in pods]):
        events = msgspec.convert(client.get("events", *identity(found)), EventList)
        if number:
            click.echo("\n")
        click.echo(describe_pod(msgspec.convert(found, Pod), events.items, datetime.now(UTC)), nl=False)
