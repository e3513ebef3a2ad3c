"""Decide which objects of a source's manifests are in use. This module reads no files.

    contents by place  +  objects in use before  --take-->  pods, objects, and problems by place

* If a place is not whole, or has a name that another place uses, its valid objects take effect, and its older objects
  stay in use until the manifest is fixed. If a place is removed, its objects are removed, too.
* A name is used once. The place that has it keeps it. Among new places, the first one gets it, and the others get a
  problem. If the name becomes free, the next place gets it.
* The result is sorted by place and by position in the manifest. It depends only on the manifests and on which place had
  a name first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem, quoted
from podkeeper.model.k8s.core import Pod
from podkeeper.sources.contents import Contents, Item
from podkeeper.sources.local_objects import LocalObject, ObjectKey


@dataclass(frozen=True, slots=True)
class Shelved:
    """The objects in use."""

    pods: tuple[Pod, ...]
    objects: tuple[LocalObject, ...]
    problems: Mapping[str, tuple[Problem, ...]]  # by place; only places with problems
    held: Mapping[str, int]  # by place: number of older objects that stay in use


class Shelf:
    """The objects in use, by place."""

    def __init__(self) -> None:
        self._counting: dict[str, tuple[Item, ...]] = {}

    @property
    def counting(self) -> Mapping[str, tuple[Item, ...]]:
        """The objects in use of each place, in the order of places."""
        return self._counting

    def restore(self, counting: Mapping[str, tuple[Item, ...]]) -> None:
        """Set the objects that were in use before a restart of the agent."""
        self._counting = dict(counting)

    def now(self) -> Shelved:
        """Return the objects in use without new contents."""
        return self._shelved({}, {})

    def take(self, contents: Mapping[str, Contents]) -> Shelved:
        """Update the objects in use. `contents` has all existing places, in order."""
        before = {place: self._counting.get(place, ()) for place in contents}
        held = {place: _others(before[place], found) for place, found in contents.items() if not found.whole}
        owners = _owners(contents, before, held)
        problems = {place: list(found.problems) for place, found in contents.items()}
        for place, found in contents.items():
            lost = [item for item in found.items if owners[item.key] != place]
            problems[place] += [_taken(item, owners[item.key]) for item in lost]
            if lost and found.whole:
                held[place] = tuple(item for item in _others(before[place], found) if item.key not in owners)
        self._counting = {
            place: (*(item for item in found.items if owners[item.key] == place), *held.get(place, ()))
            for place, found in contents.items()
        }
        self._drop_twins(problems)
        return self._shelved(problems, held)

    def _shelved(self, problems: Mapping[str, list[Problem]], held: Mapping[str, tuple[Item, ...]]) -> Shelved:
        values = [item.value for items in self._counting.values() for item in items]
        return Shelved(
            pods=tuple(value for value in values if isinstance(value, Pod)),
            objects=tuple(value for value in values if not isinstance(value, Pod)),
            problems={place: tuple(found) for place, found in problems.items() if found},
            held={place: len(items) for place, items in held.items() if items},
        )

    def _drop_twins(self, problems: dict[str, list[Problem]]) -> None:
        """Remove pods with a duplicate UID, because the engine identifies pods by UID."""
        seen: dict[str, ObjectKey] = {}
        for place, items in self._counting.items():
            kept = []
            for item in items:
                uid = item.value.metadata.uid or "" if isinstance(item.value, Pod) else ""
                if uid and seen.setdefault(uid, item.key) != item.key:
                    message = f"Duplicate value: {quoted(uid)}: used by {seen[uid]}; remove the UID or set another one"
                    problems[place].append(item.problem(message, "metadata.uid"))
                else:
                    kept.append(item)
            self._counting[place] = tuple(kept)


def _others(items: tuple[Item, ...], found: Contents) -> tuple[Item, ...]:
    """Return the items that a manifest no longer has."""
    keys = found.keys()
    return tuple(item for item in items if item.key not in keys)


def _owners(
    contents: Mapping[str, Contents], before: Mapping[str, tuple[Item, ...]], held: Mapping[str, tuple[Item, ...]]
) -> dict[ObjectKey, str]:
    """Return the place that gets each name: the one that had it before, otherwise the first one."""
    had = {item.key: place for place, items in before.items() for item in items}
    owners: dict[ObjectKey, str] = {}
    for place, found in contents.items():
        for item in (*found.items, *held.get(place, ())):
            if item.key not in owners or had.get(item.key) == place:
                owners[item.key] = place
    return owners


def _taken(item: Item, owner: str) -> Problem:
    return item.problem(f"Duplicate value: {item.key} is already defined in {owner}", "metadata.name")
