"""What counts of all that a source's manifests hold, now and before: the decisions, without a file in sight.

    contents by place  +  what counted before  --take-->  pods, objects, and what is wrong with which place

* A place that is not whole, or that lost a name to another, takes nothing away: its sound documents take effect, and
  what else it had stays as it was until it is mended. A place that is gone takes all it had with it.
* A name counts once. Whoever has it keeps it; among newcomers the first place in order gets it, the others are told
  where it stands already. When it becomes free, the next one gets it.
* What comes out is in the order of places, and within a place as it is written: the same manifests give the same
  answer, but for who had a name first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.sources.contents import Contents, Item
from podkeeper.sources.local_objects import LocalObject, ObjectKey


@dataclass(frozen=True, slots=True)
class Shelved:
    """What counts."""

    pods: tuple[Pod, ...]
    objects: tuple[LocalObject, ...]
    problems: Mapping[str, tuple[Problem, ...]]  # by place; only places that have any
    held: Mapping[str, int]  # by place: how many things stay although the manifest no longer holds them soundly


class Shelf:
    """Remembers what counted of each place."""

    def __init__(self) -> None:
        self._counting: dict[str, tuple[Item, ...]] = {}

    @property
    def counting(self) -> Mapping[str, tuple[Item, ...]]:
        """What counts of each place, in the order of places."""
        return self._counting

    def restore(self, counting: Mapping[str, tuple[Item, ...]]) -> None:
        """Begin with what counted before a restart of the agent."""
        self._counting = dict(counting)

    def now(self) -> Shelved:
        """What counts, without new contents."""
        return self._shelved({}, {})

    def take(self, contents: Mapping[str, Contents]) -> Shelved:
        """Decide what counts now; `contents` has every place there is, in order."""
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
        """Let no two pods have one UID: to the engine they would be one pod."""
        seen: dict[str, ObjectKey] = {}
        for place, items in self._counting.items():
            kept = []
            for item in items:
                uid = item.value.metadata.uid or "" if isinstance(item.value, Pod) else ""
                if uid and seen.setdefault(uid, item.key) != item.key:
                    message = f"cannot be used: {seen[uid]} has this UID; leave it out, or set another"
                    problems[place].append(item.problem(message, "metadata.uid"))
                else:
                    kept.append(item)
            self._counting[place] = tuple(kept)


def _others(items: tuple[Item, ...], found: Contents) -> tuple[Item, ...]:
    """The items that a manifest does not hold now."""
    keys = found.keys()
    return tuple(item for item in items if item.key not in keys)


def _owners(
    contents: Mapping[str, Contents], before: Mapping[str, tuple[Item, ...]], held: Mapping[str, tuple[Item, ...]]
) -> dict[ObjectKey, str]:
    """Who has each name: the one that had it, as long as it still has or holds it; else the first that has it."""
    had = {item.key: place for place, items in before.items() for item in items}
    owners: dict[ObjectKey, str] = {}
    for place, found in contents.items():
        for item in (*found.items, *held.get(place, ())):
            if item.key not in owners or had.get(item.key) == place:
                owners[item.key] = place
    return owners


def _taken(item: Item, owner: str) -> Problem:
    return item.problem(f"cannot be used: {item.key} stands already in {owner}", "metadata.name")
