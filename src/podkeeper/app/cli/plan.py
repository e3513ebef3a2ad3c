"""`podkeeper plan PATH...`: show what the agent would do with the pods.

For each pod: its identity on this node, the actions of its first sync, its first status and its grace period.
"""

import socket
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from podkeeper.app.cli.manifests import NODE_NAME_HELP, read_manifests
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.grace import effective_grace
from podkeeper.rules.plan import compute_pod_actions
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.status.pod import NodeView, PodView, api_pod_status


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--node-name", metavar="NAME", default=lambda: socket.gethostname().lower(), help=NODE_NAME_HELP)
def plan(paths: tuple[Path, ...], node_name: str) -> None:
    """Show what the agent would do with the pods in manifests.

    PATHS are files or directories. Runs no pod.

    Example: podkeeper plan examples
    """
    found = read_manifests(paths, node_name)
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    console = Console(highlight=False)
    for pod in found.pods:
        console.print(_decision_table(pod))
    console.print(f"{len(found.pods)} pods planned, {len(found.problems)} errors. No pod was run.")
    console.print("Next: check your own manifests with 'podkeeper validate PATH...'.")
    raise SystemExit(1 if found.problems else 0)


def _decision_table(pod: Pod) -> Table:
    grace = effective_grace(None, spec_seconds=pod.spec.termination_grace_period_seconds)
    table = Table(title=f"{pod.metadata.namespace}/{pod.metadata.name}", title_justify="left", title_style="bold")
    table.add_column("decision", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    table.add_row("identity", f"uid {pod.metadata.uid}, a static pod of {pod.spec.node_name}")
    table.add_row("restart policy", pod.spec.restart_policy)
    table.add_row("first sync", _first_sync(pod))
    table.add_row("first status", _first_status(pod))
    table.add_row("grace period", f"{grace.seconds} s")
    return table


def _empty_record(pod: Pod) -> PodRecord:
    return PodRecord(uid=pod.metadata.uid or "")


def _first_sync(pod: Pod) -> str:
    actions = compute_pod_actions(pod, _empty_record(pod), {}, {})
    inits = pod.spec.init_containers or ()
    return ", ".join(
        [
            *(["create the sandbox"] if actions.create_sandbox else []),
            *(f"start init container {inits[index].name}" for index in actions.init_containers_to_start),
            *(f"start container {pod.spec.containers[index].name}" for index in actions.containers_to_start),
        ]
    )


def _first_status(pod: Pod) -> str:
    probes = ProbeView(agent_started=datetime.now(UTC))
    status = api_pod_status(pod, PodView(record=_empty_record(pod), probes=probes), NodeView(runtime_name="process"))
    waiting = [
        f"{container.name} waiting ({container.state.waiting.reason})"
        for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if container.state.waiting is not None
    ]
    return f"{status.phase}, QoS {status.qos_class}: " + ", ".join(waiting)
