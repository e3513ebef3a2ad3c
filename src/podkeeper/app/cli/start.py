"""`podkeeper start POD...`: start pods again after `podkeeper stop`."""

import click

from podkeeper.app.cli.agent_requests import complete_pod, get_pod, identity, with_client
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pods", nargs=-1, required=True, shell_complete=complete_pod)
@with_client
def start(pods: tuple[str, ...], client: LocalClient) -> None:
    """Start stopped pods.

    Starts pods that 'podkeeper stop' has stopped. They start from scratch, as if they had never run.

    Example: podkeeper start web
    """
    for pod in [get_pod(client, name) for name in pods]:
        client.post("start", *identity(pod))
        name = identity(pod)[1]
        if pod["metadata"].get("deletionTimestamp"):
            click.echo(f"{name} is still stopping. It starts again after that.")
        elif pod["status"].get("reason") == "Stopped":
            click.echo(f"{name} started.")
        else:
            click.echo(f"{name} was not stopped.")
