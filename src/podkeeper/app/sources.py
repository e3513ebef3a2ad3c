"""Construct the sources of an agent."""

from collections.abc import Collection
from pathlib import Path

from podkeeper.engine.notebook import Notebook
from podkeeper.ports.api import Reader, Watcher
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.source import Source
from podkeeper.sources.apiserver import ApiSource
from podkeeper.sources.kept_objects import KeptObjects, Tokens
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.object_files import ObjectFiles
from podkeeper.sources.remembered import RememberedSource

_MANIFEST_NOTES = "manifest/"  # then the source's name and a slash


def api_source(*, api: Watcher, node_name: str, clock: Clock, journal: Journal | None) -> Source:
    """Return the API source. With a journal, it stores its pods across restarts."""
    if journal is None:
        return ApiSource(api=api, node_name=node_name, clock=clock)
    seen, pods = Notebook(journal, "seen/"), Notebook(journal, "pod/")
    return RememberedSource(
        lambda remember: ApiSource(api=api, node_name=node_name, clock=clock, notes=seen, remember=remember), pods
    )


def manifest_notes(journal: Journal, source: str, node_name: str, *, keep_secrets: bool) -> ManifestNotes:
    """Return the stored manifests of a source. With them, static pods start while the manifests are unreadable."""
    return ManifestNotes(Notebook(journal, f"{_MANIFEST_NOTES}{source}/"), node_name, keep_secrets=keep_secrets)


async def drop_unused_manifest_notes(journal: Journal, sources: Collection[str]) -> None:
    """Drop the notes of all sources of manifests but these. Their Secrets leave the disk, too.

    A source drops its own notes. If it is not configured any more, nothing else would.
    """
    notes = Notebook(journal, _MANIFEST_NOTES)
    unused = [key for key in notes.old_keys() if key.partition("/")[0] not in sources]
    for key in unused:
        notes.drop(key)
    if unused:
        notes.purge()
        await notes.settle()  # if the disk refuses, the next sync of the journal removes them


def kept_objects(
    *, api: Reader, root: Path, clock: Clock, keep_secrets: bool, tokens: Tokens | None = None
) -> KeptObjects:
    """Return the API's config maps and secrets, stored so that pods can start without the API.

    Give it to the volumes and to the agent (`Ports.objects`, `Ports.keep_objects`), and let its `run` run.
    """
    return KeptObjects(api, ObjectFiles(root / "objects"), clock, keep_secrets=keep_secrets, tokens=tokens)
