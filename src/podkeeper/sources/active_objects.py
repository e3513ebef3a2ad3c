"""Decide which objects of a source's manifests are in use.

This module reads no files.

    content by location  +  objects in use before  --update-->  pods, objects, and problems by location

* A *location* is a file or URL with a manifest. If its content is incomplete, or has a name that another location uses,
  its valid objects take effect. Its older objects stay in use until the manifest is fixed. If a location is removed,
  its objects are removed, too.
* Each name belongs to one location, and that location keeps it. If several new locations have the same name, the first
  one gets it, and a problem is reported for the others. If the name becomes free, the next location gets it.
* The result is sorted by location and by position in the manifest. It depends only on the manifests and on which
  location had a name first.
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
    problems: Mapping[str, tuple[Problem, ...]]  # by location; only locations with problems
    retained: Mapping[str, int]  # by location: number of older objects that stay in use


class ActiveObjects:
    """The objects in use, by location."""

    def __init__(self) -> None:
        self._by_location: dict[str, tuple[ManifestItem, ...]] = {}

    @property
    def by_location(self) -> Mapping[str, tuple[ManifestItem, ...]]:
        """The objects in use of each location, in the order of locations."""
        return self._by_location

    def restore(self, by_location: Mapping[str, tuple[ManifestItem, ...]]) -> None:
        """Set the objects that were in use before a restart of the agent."""
        self._by_location = dict(by_location)

    def current(self) -> ActiveSet:
        """Return the objects in use without new contents."""
        return self._active_set({}, {})

    def update(self, content: Mapping[str, ManifestContent]) -> ActiveSet:
        """Update the objects in use. `content` has all existing locations, in order."""
        before = {location: self._by_location.get(location, ()) for location in content}
        retained = {
            location: _others(before[location], found) for location, found in content.items() if not found.is_complete
        }
        owners = _owners(content, before, retained)
        problems = {location: list(found.problems) for location, found in content.items()}
        for location, found in content.items():
            lost = [item for item in found.items if owners[item.key] != location]
            problems[location] += [_duplicate(item, owners[item.key]) for item in lost]
            # The file probably renamed an object to a name that is taken. Its former object stays until the conflict is
            # solved.
            if lost and found.is_complete:
                retained[location] = tuple(item for item in _others(before[location], found) if item.key not in owners)
        self._by_location = {
            location: (*(item for item in found.items if owners[item.key] == location), *retained.get(location, ()))
            for location, found in content.items()
        }
        self._drop_duplicate_uids(problems)
        return self._active_set(problems, retained)

    def _active_set(
        self, problems: Mapping[str, list[Problem]], retained: Mapping[str, tuple[ManifestItem, ...]]
    ) -> ActiveSet:
        values = [item.value for items in self._by_location.values() for item in items]
        return ActiveSet(
            pods=tuple(value for value in values if isinstance(value, Pod)),
            objects=tuple(value for value in values if not isinstance(value, Pod)),
            problems={location: tuple(found) for location, found in problems.items() if found},
            retained={location: len(items) for location, items in retained.items() if items},
        )

    def _drop_duplicate_uids(self, problems: dict[str, list[Problem]]) -> None:
        """Remove pods with a duplicate UID, because the engine identifies pods by UID."""
        seen: dict[str, ObjectKey] = {}
        for location, items in self._by_location.items():
            kept = []
            for item in items:
                uid = item.value.metadata.uid or "" if isinstance(item.value, Pod) else ""
                if uid and seen.setdefault(uid, item.key) != item.key:
                    message = f"Duplicate value: {quoted(uid)}: used by {seen[uid]}; remove the UID or set another one"
                    problems[location].append(item.problem(message, "metadata.uid"))
                else:
                    kept.append(item)
            self._by_location[location] = tuple(kept)


def _others(items: tuple[ManifestItem, ...], found: ManifestContent) -> tuple[ManifestItem, ...]:
    """Return the items that a manifest no longer has."""
    keys = found.keys()
    return tuple(item for item in items if item.key not in keys)


def _owners(
    content: Mapping[str, ManifestContent],
    before: Mapping[str, tuple[ManifestItem, ...]],
    retained: Mapping[str, tuple[ManifestItem, ...]],
) -> dict[ObjectKey, str]:
    """Return the owner of each name: the location that had it before, otherwise the first location."""
    had = {item.key: location for location, items in before.items() for item in items}
    owners: dict[ObjectKey, str] = {}
    for location, found in content.items():
        for item in (*found.items, *retained.get(location, ())):
            # The former owner keeps a name. Otherwise a new file that sorts first would replace a running pod.
            if item.key not in owners or had.get(item.key) == location:
                owners[item.key] = location
    return owners


def _duplicate(item: ManifestItem, owner: str) -> Problem:
    return item.problem(f"Duplicate value: {item.key} is already defined in {owner}", "metadata.name")
