"""`podkeeper port-forward POD [LOCAL:]REMOTE...`: connections to ports of this machine go to ports of a pod.

Each connection asks the agent for itself: one that breaks is told of and the others go on, and a pod that was
restarted meanwhile is found again. The Go ancestors are kubectl's `port-forward` and client-go's `tools/portforward`.
"""

import click

from podkeeper.app.cli.asking import asks, complete_pod, identity, pod_named
from podkeeper.app.local.client import LocalClient


@click.command(name="port-forward")
@click.argument("pod", shell_complete=complete_pod)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option(
    "--address", default="localhost", show_default=True, help="Where to listen: addresses or localhost, with commas."
)
@asks
def port_forward(pod: str, ports: tuple[str, ...], address: str, client: LocalClient) -> None:
    """Reach ports of a pod from here, such as: podkeeper port-forward web 8080:80.

    LOCAL may be left out (the same number), or be empty (":80": a port that is free). REMOTE may be the name that a
    container gave it. Ctrl-C ends it.
    """
    from podkeeper.app.cli.forwarding import Forwarding, listeners_for, pairs_meant

    found = pod_named(client, pod)
    if (phase := found["status"].get("phase")) != "Running":
        raise click.ClickException(f"unable to forward port because pod is not running. Current status={phase}")
    pairs = pairs_meant(found, ports)
    with listeners_for(pairs, address) as listeners:
        Forwarding(client, identity(found)).run(listeners)
