"""Decide which objects of a source's manifests are in use.

This module reads no files.

    content by place  +  objects in use before  --update-->  pods, objects, and problems by place

* The content of a place may be incomplete, or have a name that another place uses. Then its valid objects take effect,
  and its older objects stay in use until the manifest is fixed. If a place is removed, its objects are removed, too.
* A name is used once. The place that has it keeps it. Among new places, the first one gets it, and the others get a
  problem. If the name becomes free, the next place gets it.
* The result is sorted by place and by position in the manifest. It depends only on the manifests and on which place had
  a name first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem, quoted
from podkeeper.model.k8s.core import Pod
from podkeeper.sources.local_objects import LocalObject, ObjectKey
from podkeeper.sources.manifest_content import ManifestContent, ManifestItem


@dataclass(frozen=True, slots=True)
class ActiveSet:
    """The objects in use."""

    pods: tuple[Pod, ...]
    objects: tuple[LocalObject, ...]
    problems: Mapping[str, tuple[Problem, ...]]  # by place; only places with problems
    retained: Mapping[str, int]  # by place: number of older objects that stay in use


class ActiveObjects:
    """The objects in use, by place."""

    def __init__(self) -> None:
        self._by_place: dict[str, tuple[ManifestItem, ...]] = {}

    @property
    def by_place(self) -> Mapping[str, tuple[ManifestItem, ...]]:
        """The objects in use of each place, in the order of places."""
        return self._by_place

    def restore(self, by_place: Mapping[str, tuple[ManifestItem, ...]]) -> None:
        """Set the objects that were in use before a restart of the agent."""
        self._by_place = dict(by_place)

    def current(self) -> ActiveSet:
        """Return the objects in use without new contents."""
        return self._active_set({}, {})

    def update(self, content: Mapping[str, ManifestContent]) -> ActiveSet:
        """Update the objects in use. `content` has all existing places, in order."""
        before = {place: self._by_place.get(place, ()) for place in content}
        retained = {place: _others(before[place], found) for place, found in content.items() if not found.is_complete}
        owners = _owners(content, before, retained)
        problems = {place: list(found.problems) for place, found in content.items()}
        for place, found in content.items():
            lost = [item for item in found.items if owners[item.key] != place]
            problems[place] += [_duplicate(item, owners[item.key]) for item in lost]
            if lost and found.is_complete:
                retained[place] = tuple(item for item in _others(before[place], found) if item.key not in owners)
        self._by_place = {
            place: (*(item for item in found.items if owners[item.key] == place), *retained.get(place, ()))
            for place, found in content.items()
        }
        self._drop_duplicate_uids(problems)
        return self._active_set(problems, retained)

    def _active_set(
        self, problems: Mapping[str, list[Problem]], retained: Mapping[str, tuple[ManifestItem, ...]]
    ) -> ActiveSet:
        values = [item.value for items in self._by_place.values() for item in items]
        return ActiveSet(
            pods=tuple(value for value in values if isinstance(value, Pod)),
            objects=tuple(value for value in values if not isinstance(value, Pod)),
            problems={place: tuple(found) for place, found in problems.items() if found},
            retained={place: len(items) for place, items in retained.items() if items},
        )

    def _drop_duplicate_uids(self, problems: dict[str, list[Problem]]) -> None:
        """Remove pods with a duplicate UID, because the engine identifies pods by UID."""
        seen: dict[str, ObjectKey] = {}
        for place, items in self._by_place.items():
            kept = []
            for item in items:
                uid = item.value.metadata.uid or "" if isinstance(item.value, Pod) else ""
                if uid and seen.setdefault(uid, item.key) != item.key:
                    message = f"Duplicate value: {quoted(uid)}: used by {seen[uid]}; remove the UID or set another one"
                    problems[place].append(item.problem(message, "metadata.uid"))
                else:
                    kept.append(item)
            self._by_place[place] = tuple(kept)


def _others(items: tuple[ManifestItem, ...], found: ManifestContent) -> tuple[ManifestItem, ...]:
    """Return the items that a manifest no longer has."""
    keys = found.keys()
    return tuple(item for item in items if item.key not in keys)


def _owners(
    content: Mapping[str, ManifestContent],
    before: Mapping[str, tuple[ManifestItem, ...]],
    retained: Mapping[str, tuple[ManifestItem, ...]],
) -> dict[ObjectKey, str]:
    """Return the place that gets each name: the one that had it before, otherwise the first one."""
    had = {item.key: place for place, items in before.items() for item in items}
    owners: dict[ObjectKey, str] = {}
    for place, found in content.items():
        for item in (*found.items, *retained.get(place, ())):
            if item.key not in owners or had.get(item.key) == place:
                owners[item.key] = place
    return owners


def _duplicate(item: ManifestItem, owner: str) -> Problem:
    return item.problem(f"Duplicate value: {item.key} is already defined in {owner}", "metadata.name")
