"""`podkeeper describe POD...`: show details and events of pods, as kubectl does."""

from datetime import UTC, datetime

import click

from podkeeper.app.cli.agent_requests import complete_pod, get_pod, identity, with_client
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pods", nargs=-1, required=True, shell_complete=complete_pod)
@with_client
def describe(pods: tuple[str, ...], client: LocalClient) -> None:
    """Show details and events of pods.

    Prints the same sections as 'kubectl describe pod'.

    Example: podkeeper describe web
    """
    import msgspec

    from podkeeper.app.cli.pod_description import describe_pod
    from podkeeper.model.k8s.core import EventList, Pod

    for number, found in enumerate([get_pod(client, name) for name in pods]):
        events = msgspec.convert(client.get("events", *identity(found)), EventList)
        if number:
            click.echo("\n")
        click.echo(describe_pod(msgspec.convert(found, Pod), events.items, datetime.now(UTC)), nl=False)
