"""`podkeeper port-forward POD [LOCAL:]REMOTE...`: forward local ports to a pod.

Each connection has its own request to the agent. A broken connection is reported and does not affect the others.
Forwarding continues after a restart of the pod. Counterparts: kubectl's `port-forward` and client-go's
`tools/portforward`.
"""

import click

from podkeeper.app.cli.agent_requests import complete_pod, get_pod, identity, with_client
from podkeeper.app.local.client import LocalClient


@click.command(name="port-forward")
@click.argument("pod", shell_complete=complete_pod)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option(
    "--address",
    default="localhost",
    show_default=True,
    metavar="ADDRESSES",
    help="IP addresses to listen on, separated by commas, or localhost.",
)
@with_client
def port_forward(pod: str, ports: tuple[str, ...], address: str, client: LocalClient) -> None:
    """Forward local ports to a pod.

    LOCAL defaults to REMOTE. With an empty LOCAL (":80"), podkeeper chooses a free port. REMOTE is a number or the
    name of a container port. Press Ctrl-C to end.

    \b
    Examples:
      podkeeper port-forward web 8080:80
      podkeeper port-forward web :http
    """
    from podkeeper.app.cli.forward_listener import Forwarding, listeners_for, parse_port_pairs

    found = get_pod(client, pod)
    if (phase := found["status"].get("phase")) != "Running":
        raise click.ClickException(f"unable to forward port because pod is not running. Current status={phase}")
    pairs = parse_port_pairs(found, ports)
    with listeners_for(pairs, address) as listeners:
        Forwarding(client, identity(found)).run(listeners)
