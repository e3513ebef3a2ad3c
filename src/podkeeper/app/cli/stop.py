"""`podkeeper stop POD...`: stop pods until they are started again."""

import time

import click

from podkeeper.app.cli.agent_requests import complete_pod, get_pod, identity, with_client
from podkeeper.app.local.client import Json, LocalClient, RequestFailed

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 5.0


@click.command()
@click.argument("pods", nargs=-1, required=True, shell_complete=complete_pod)
@click.option(
    "--grace-period",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Grace period [default: the pod's terminationGracePeriodSeconds].",
)
@click.option("--force", is_flag=True, help="Stop at once, with a grace period of 1 second.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the pods have stopped.")
@with_client
def stop(pods: tuple[str, ...], grace_period: int | None, force: bool, no_wait: bool, client: LocalClient) -> None:
    """Stop pods until they are started again.

    A stopped pod stays stopped until 'podkeeper start POD' or a change of its manifest, even if the agent restarts.
    To remove a pod, remove its manifest. To shorten the grace period of a pod that is stopping, stop it again.

    \b
    Examples:
      podkeeper stop web
      podkeeper stop --force web job
    """
    if force:
        grace_period = 1
    found = [get_pod(client, name) for name in pods]  # first find all pods, so that a wrong name stops none
    for pod in found:
        client.post("stop", *identity(pod), gracePeriodSeconds=grace_period)
    if not no_wait:
        _wait(client, found)
    for pod in found:
        name = identity(pod)[1]
        done = "is stopping" if no_wait else "stopped"
        click.echo(f"{name} {done}. To start it again, run 'podkeeper start {name}' or change its manifest.")


def _wait(client: LocalClient, pods: list[Json]) -> None:
    printed_at = time.monotonic()
    left = pods
    while left := [pod for pod in left if not _is_stopped(client, pod)]:
        if time.monotonic() - printed_at >= _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            click.echo(f"still stopping: {', '.join(identity(pod)[1] for pod in left)}", err=True)
        time.sleep(_POLL_SECONDS)


def _is_stopped(client: LocalClient, pod: Json) -> bool:
    try:
        now = client.get("pods", *identity(pod))
    except RequestFailed as error:
        if error.code == 404:
            return True  # its manifest was removed in the meantime
        raise
    return now["metadata"]["uid"] != pod["metadata"]["uid"] or not _is_terminating(now)


def _is_terminating(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or pod["status"].get("reason") != "Stopped"
