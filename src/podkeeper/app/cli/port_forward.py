"""`podkeeper port-forward POD [LOCAL:]REMOTE...`: forward local ports to a pod.

Each connection has its own request to the agent. A broken connection is reported and does not affect the others, and
forwarding continues after a restart of the pod. Counterparts: kubectl's `port-forward` and client-go's
`tools/portforward`.
"""

import click

from podkeeper.app.cli.asking import asks, complete_pod, identity, pod_named
from podkeeper.app.local.client import LocalClient


@click.command(name="port-forward")
@click.argument("pod", shell_complete=complete_pod)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option(
    "--address",
    default="localhost",
    show_default=True,
    help="Addresses to listen on, separated by commas. IP addresses or localhost.",
)
@asks
def port_forward(pod: str, ports: tuple[str, ...], address: str, client: LocalClient) -> None:
    """Forward local ports to a pod.

    LOCAL defaults to REMOTE. With an empty LOCAL (":80"), podkeeper chooses a free port. REMOTE is a number or the
    name of a container port. Press Ctrl-C to end.

    \b
    Examples:
      podkeeper port-forward web 8080:80
      podkeeper port-forward web :http
    """
    from podkeeper.app.cli.forwarding import Forwarding, listeners_for, pairs_meant

    found = pod_named(client, pod)
    if (phase := found["status"].get("phase")) != "Running":
        raise click.ClickException(f"unable to forward port because pod is not running. Current status={phase}")
    pairs = pairs_meant(found, ports)
    with listeners_for(pairs, address) as listeners:
        Forwarding(client, identity(found)).run(listeners)
