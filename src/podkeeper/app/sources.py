"""Construct the sources of an agent."""

from collections.abc import Collection
from pathlib import Path

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.ports.api import ObjectReader, TokenProvider, Watcher
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.source import Source
from podkeeper.sources.apiserver import ApiSource
from podkeeper.sources.object_files import ObjectFiles
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.sources.stored_objects import StoredObjects
from podkeeper.sources.stored_pods import StoredPodsSource

_MANIFEST_PREFIX = "manifest/"  # followed by the source's name and a slash


def api_source(*, api: Watcher, node_name: str, clock: Clock, journal: Journal | None) -> Source:
    """Return the API source. With a journal, it stores its pods across restarts."""
    if journal is None:
        return ApiSource(api=api, node_name=node_name, clock=clock)
    seen, pods = Checkpoints(journal, "seen/"), Checkpoints(journal, "pod/")
    return StoredPodsSource(
        lambda store: ApiSource(api=api, node_name=node_name, clock=clock, checkpoints=seen, store=store), pods
    )


def stored_manifests(journal: Journal, source: str, node_name: str, *, keep_secrets: bool) -> StoredManifests:
    """Return the stored manifests of a source. With them, static pods start while the manifests are unreadable."""
    return StoredManifests(Checkpoints(journal, f"{_MANIFEST_PREFIX}{source}/"), node_name, keep_secrets=keep_secrets)


async def drop_unused_manifests(journal: Journal, sources: Collection[str]) -> None:
    """Drop the stored manifests of all sources but these. Their Secrets are also removed from the disk.

    A source drops its own manifests, but only while it is configured.
    """
    checkpoints = Checkpoints(journal, _MANIFEST_PREFIX)
    unused = [key for key in checkpoints.old_keys() if key.partition("/")[0] not in sources]
    for key in unused:
        checkpoints.drop(key)
    if unused:
        checkpoints.purge()
        await checkpoints.settle()  # after a disk error, the next sync of the journal removes them


def stored_objects(
    *, api: ObjectReader, root: Path, clock: Clock, keep_secrets: bool, tokens: TokenProvider | None = None
) -> StoredObjects:
    """Return the API's ConfigMaps and Secrets, stored so that pods can start without the API.

    Pass it to the volumes and to the agent (`Ports.objects`, `Ports.keep_objects`), and start its `run` as a task.
    """
    return StoredObjects(api, ObjectFiles(root / "objects"), clock, keep_secrets=keep_secrets, tokens=tokens)
