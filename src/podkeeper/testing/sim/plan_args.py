"""Convert plans to and from command-line options of `podkeeper sim`.

The functions that parse raise a ValueError with the expected format.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.run import SimPlan


def command_for(plan: SimPlan, *, also: str = "") -> str:
    """Return the command that runs a plan again."""
    words = ["podkeeper", "sim", "--seed", str(plan.seed), "--hours", f"{plan.hours!r}".removesuffix(".0")]
    default = SimPlan(seed=plan.seed)
    if plan.faults != default.faults:
        words += ["--faults", choice_shown(plan.faults, default.faults)]
    if plan.workload != default.workload:
        words += ["--workload", choice_shown(plan.workload, default.workload)]
    for change in profile_shown(plan.profile):
        words += ["--profile", change]
    if also:
        words += ["--also", also]
    if plan.only is not None:
        words += ["--only", numbers_shown(plan.only)]
    return shlex.join(words)


_OLD_NAMES = {"dawdle": "late-wakeups"}
"""Former names of faults, so that the commands of older reports still work."""


# Choices: "all", "none", "crash,reboot", "all,-crash".


def choice_read(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Parse a selection. Return the selected names in the order of `known`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    wanted = set(known) if words and words[0].startswith("-") else set()
    for word in words:
        name = word.removeprefix("-")
        name = _OLD_NAMES.get(name, name)
        if word == "all":
            wanted = set(known)
        elif word == "none":
            wanted = set()
        elif name not in known:
            raise ValueError(f"unknown name {name!r}")
        elif word.startswith("-"):
            wanted.discard(name)
        else:
            wanted.add(name)
    return tuple(name for name in known if name in wanted)


def choice_shown(names: Collection[str], known: Collection[str]) -> str:
    """Format a selection in the shortest way."""
    left_out = [f"-{name}" for name in known if name not in names]
    if not left_out:
        return "all"
    if not names:
        return "none"
    return ",".join(["all", *left_out]) if len(left_out) < len(names) else ",".join(names)


# Numbers of actions: "3,17,20-25", "none".


def numbers_read(text: str) -> frozenset[int]:
    """Parse numbers and ranges."""
    numbers: set[int] = set()
    for part in text.split(",") if text != "none" else ():
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ValueError(f"cannot parse {part!r}: expected numbers such as 3,17,20-25, or none")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def numbers_shown(numbers: Iterable[int]) -> str:
    """Format numbers in order, with ranges for neighbours."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


# Seeds: "0:300", without the last one.


def seeds_read(text: str) -> range:
    """Parse a range of seeds."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ValueError(f"cannot parse {text!r}: expected FIRST:LAST, such as 0:300 (LAST is excluded)")
    return range(int(first), int(last))


# Profiles: "pods=30", "life_minutes=3:10", or the share of a workload or rate of a fault: "jobs=10", "crash=20".

_MAPPINGS = ("shares", "fault_rates")


def profile_read(changes: Sequence[str], default: Profile) -> Profile:
    """Return the default profile with some changes."""
    profile = default
    for change in changes:
        key, equals, text = change.partition("=")
        try:
            if not equals:
                raise KeyError(key)
            profile = _changed(profile, _OLD_NAMES.get(key, key), text)
        except KeyError:
            known = ", ".join(profile_keys(default))
            raise ValueError(f"cannot parse {change!r}: expected KEY=VALUE, where KEY is one of {known}") from None
        except ValueError:
            raise ValueError(f"cannot parse {change!r}: expected a number, or numbers such as 3:45") from None
    return profile


def profile_keys(profile: Profile) -> list[str]:
    """Return all keys that can be changed."""
    plain = [each.name for each in fields(profile) if each.name not in _MAPPINGS]
    return [*plain, *profile.shares, *profile.fault_rates]


def profile_shown(profile: Profile) -> list[str]:
    """Return the differences between a profile and the default one, as options."""
    default = Profile()
    changes = []
    for each in fields(profile):
        value, default_value = getattr(profile, each.name), getattr(default, each.name)
        if each.name in _MAPPINGS:
            changes += [f"{key}={value!r}" for key, value in value.items() if value != default_value.get(key)]
        elif value != default_value:
            changes.append(f"{each.name}={':'.join(map(repr, value)) if isinstance(value, tuple) else repr(value)}")
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
    change = {key: _parse_like(getattr(profile, key), text)}
    return replace(profile, **change)


def _parse_like(old: object, text: str) -> object:
    """Parse a text as a value of the same type as `old`."""
    match old:
        case tuple():
            return tuple(_parse_like(old[0], part) for part in text.split(":"))
        case float():
            return float(text)
        case int():
            return int(text)
        case _:
            raise KeyError
