"""`podkeeper start POD...`: let pods go on that were stopped by hand."""

import click

from podkeeper.app.cli.asking import asks, complete_pod, identity, pod_named
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pods", nargs=-1, required=True, shell_complete=complete_pod)
@asks
def start(pods: tuple[str, ...], client: LocalClient) -> None:
    """Start pods again that 'podkeeper stop' has stopped."""
    for pod in [pod_named(client, name) for name in pods]:
        was_stopped = pod["status"].get("reason") == "Stopped" or pod["metadata"].get("deletionTimestamp")
        client.post("start", *identity(pod))
        name = identity(pod)[1]
        click.echo(f"{name} is started again." if was_stopped else f"{name} was not stopped.")
