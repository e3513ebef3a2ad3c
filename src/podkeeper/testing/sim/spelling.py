"""How plans are spelled on the command line, both ways: what can be typed, and what to type to play a plan again.

Whatever is read here raises a `ValueError` that says what would be right.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from podkeeper.testing.sim.play import Plan
from podkeeper.testing.sim.profile import Profile


def command_for(plan: Plan, *, also: str = "") -> str:
    """What to type to play a plan again."""
    words = ["podkeeper", "sim", "--seed", str(plan.seed), "--hours", f"{plan.hours!r}".removesuffix(".0")]
    usual = Plan(seed=plan.seed)
    if plan.faults != usual.faults:
        words += ["--faults", choice_shown(plan.faults, usual.faults)]
    if plan.workload != usual.workload:
        words += ["--workload", choice_shown(plan.workload, usual.workload)]
    for change in profile_shown(plan.profile):
        words += ["--profile", change]
    if also:
        words += ["--also", also]
    if plan.only is not None:
        words += ["--only", numbers_shown(plan.only)]
    return shlex.join(words)


# Choices: "all", "none", "crash,reboot", "all,-crash".


def choice_read(text: str, known: Collection[str]) -> tuple[str, ...]:
    """The names that a choice means, in the order in which they are known."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    wanted = set(known) if words and words[0].startswith("-") else set()
    for word in words:
        name = word.removeprefix("-")
        if word == "all":
            wanted = set(known)
        elif word == "none":
            wanted = set()
        elif name not in known:
            raise ValueError(f"there is no {name!r}")
        elif word == name:
            wanted.add(name)
        else:
            wanted.discard(name)
    return tuple(name for name in known if name in wanted)


def choice_shown(names: Collection[str], known: Collection[str]) -> str:
    """A choice, as shortly as can be."""
    left_out = [f"-{name}" for name in known if name not in names]
    if not left_out:
        return "all"
    if not names:
        return "none"
    return ",".join(["all", *left_out]) if len(left_out) < len(names) else ",".join(names)


# Numbers of acts: "3,17,20-25", "none".


def numbers_read(text: str) -> frozenset[int]:
    """The numbers that are meant."""
    numbers: set[int] = set()
    for part in text.split(",") if text != "none" else ():
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ValueError(f"cannot read {part!r}: right would be numbers, like 3,17,20-25, or none")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def numbers_shown(numbers: Iterable[int]) -> str:
    """Numbers in order, neighbours taken together."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


# Seeds: "0:300", without the last one.


def seeds_read(text: str) -> range:
    """The seeds that are meant."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ValueError(f"cannot read {text!r}: right would be FIRST:LAST, the last one not included, like 0:300")
    return range(int(first), int(last))


# Profiles: "pods=30", "life_minutes=3:10", or the share of a workload or rate of a fault: "jobs=10", "crash=20".

_MAPPINGS = ("shares", "fault_rates")


def profile_read(changes: Sequence[str], usual: Profile) -> Profile:
    """The usual profile with some changes."""
    profile = usual
    for change in changes:
        key, equals, text = change.partition("=")
        try:
            if not equals:
                raise KeyError(key)
            profile = _changed(profile, key, text)
        except KeyError:
            known = ", ".join(profile_keys(usual))
            raise ValueError(f"cannot read {change!r}: right would be KEY=VALUE, with a key of: {known}") from None
        except ValueError:
            raise ValueError(f"cannot read {change!r}: its value is no number, nor numbers like 3:45") from None
    return profile


def profile_keys(profile: Profile) -> list[str]:
    """All that can be changed."""
    plain = [each.name for each in fields(profile) if each.name not in _MAPPINGS]
    return [*plain, *profile.shares, *profile.fault_rates]


def profile_shown(profile: Profile) -> list[str]:
    """The changes that make this profile out of the usual one."""
    usual = Profile()
    changes = []
    for each in fields(profile):
        ours, theirs = getattr(profile, each.name), getattr(usual, each.name)
        if each.name in _MAPPINGS:
            changes += [f"{key}={value!r}" for key, value in ours.items() if value != theirs.get(key)]
        elif ours != theirs:
            changes.append(f"{each.name}={':'.join(map(repr, ours)) if isinstance(ours, tuple) else repr(ours)}")
    return changes


def _changed(profile: Profile, key: str, text: str) -> Profile:
    change: dict[str, Any]
    for name in _MAPPINGS:
        values: Mapping[str, float] = getattr(profile, name)
        if key in values:
            change = {name: {**values, key: float(text)}}
            return replace(profile, **change)
    if key not in profile_keys(profile):
        raise KeyError(key)
    change = {key: _like(getattr(profile, key), text)}
    return replace(profile, **change)


def _like(old: object, text: str) -> object:
    """A text as a value of the same kind as an old one."""
    match old:
        case tuple():
            return tuple(_like(old[0], part) for part in text.split(":"))
        case float():
            return float(text)
        case int():
            return int(text)
        case _:
            raise KeyError
