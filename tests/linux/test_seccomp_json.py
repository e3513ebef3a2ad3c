"""Seccomp profiles in the JSON format of the OCI and of Docker."""

import errno
import json
from typing import Any

import pytest

from podkeeper.linux.capabilities import NAMES
from podkeeper.linux.seccomp_json import MAX_BYTES, read_profile
from podkeeper.linux.seccomp_profile import Action, Condition, Operator, Profile, ProfileError, Rule, Selector

DENY = {"defaultAction": "SCMP_ACT_ERRNO"}
ALLOW_A = {"names": ["a"], "action": "SCMP_ACT_ALLOW"}
ARGUMENT = {"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}


def read(document: object) -> Profile:
    return read_profile(json.dumps(document).encode())


def rule(**fields: object) -> Rule:
    """Read a profile with one rule."""
    (found,) = read({**DENY, "syscalls": [{**ALLOW_A, **fields}]}).rules
    return found


def test_a_complete_profile() -> None:
    document = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_ARM", "SCMP_ARCH_S390X"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC"],
        "listenerPath": "/ignored",
        "syscalls": [
            {"names": ["read", "write", "read"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "ignored"},
            {
                "names": ["clone"],
                "action": "SCMP_ACT_TRACE",
                "errnoRet": 7,
                "args": [
                    {"index": 0, "value": 2114060288, "valueTwo": 1, "op": "SCMP_CMP_MASKED_EQ"},
                    {"index": 5, "value": 18446744073709551615, "op": "SCMP_CMP_NE"},
                ],
                "includes": {"caps": ["CAP_SYS_ADMIN", "CAP_BPF"], "arches": ["amd64"], "minKernel": "4.8"},
                "excludes": {"caps": ["CAP_KILL"], "arches": ["s390", "s390x"], "minKernel": "6.12"},
            },
        ],
    }
    assert read(document) == Profile(
        Action.ERRNO,
        38,
        frozenset(("i386", "x32", "arm")),
        (
            Rule(("read", "write"), Action.ALLOW),
            Rule(
                ("clone",),
                Action.TRACE,
                7,
                (
                    Condition(0, Operator.MASKED_EQ, 2114060288, 1),
                    Condition(5, Operator.NE, (1 << 64) - 1),
                ),
                Selector(frozenset((NAMES.index("SYS_ADMIN"), NAMES.index("BPF"))), frozenset(("amd64",)), (4, 8)),
                Selector(frozenset((5,)), frozenset(("s390", "s390x")), (6, 12)),
            ),
        ),
        flags=6,
    )


def test_a_minimal_profile() -> None:
    assert read(DENY) == Profile(Action.ERRNO, errno.EPERM)


def test_null_is_a_missing_field() -> None:
    fields = ("args", "includes", "excludes", "errnoRet", "comment", "name")
    assert rule(**dict.fromkeys(fields)) == rule()
    assert rule(includes={"caps": None, "arches": None, "minKernel": None}) == rule()
    assert read({**DENY, "architectures": None, "archMap": None, "flags": None, "syscalls": None}) == read(DENY)
    machine = {"architecture": "SCMP_ARCH_RISCV64", "subArchitectures": None}
    assert read({**DENY, "archMap": [machine]}) == read(DENY)


def test_an_empty_kernel_version_is_a_missing_one() -> None:
    assert rule(includes={"minKernel": ""}) == rule()


def test_the_old_format_has_one_name() -> None:
    (found,) = read({**DENY, "syscalls": [{"name": "a", "action": "SCMP_ACT_ALLOW"}]}).rules
    assert found == rule()
    assert rule(name="") == rule()


def test_podman_writes_names_of_errors() -> None:
    assert read({**DENY, "defaultErrno": "ENOSYS"}).default_errno == errno.ENOSYS
    assert rule(errno="EACCES").errno == errno.EACCES
    assert rule(errno="EACCES", errnoRet=5).errno == 5
    assert rule(errno="").errno == errno.EPERM


@pytest.mark.parametrize("action", Action)
def test_actions(action: Action) -> None:
    assert rule(action=f"SCMP_ACT_{action.name}").action is action
    assert read({"defaultAction": f"SCMP_ACT_{action.name}"}).default_action is action


def test_kill_means_the_thread() -> None:
    assert rule(action="SCMP_ACT_KILL").action is Action.KILL_THREAD


@pytest.mark.parametrize("operator", Operator)
def test_operators(operator: Operator) -> None:
    assert rule(args=[{**ARGUMENT, "op": f"SCMP_CMP_{operator.name}"}]).conditions == (Condition(0, operator, 1),)


def test_a_map_of_architectures() -> None:
    machines: list[dict[str, Any]] = [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM", "SCMP_ARCH_X86"]},
        {"architecture": "SCMP_ARCH_S390X", "subArchitectures": ["SCMP_ARCH_S390", "SCMP_ARCH_X32"]},
    ]
    assert read({**DENY, "archMap": machines}).architectures == {"i386", "x32", "arm"}
    assert read({**DENY, "archMap": machines[1:]}).architectures == {"arm"}
    assert read({**DENY, "archMap": machines[2:]}).architectures == set()


@pytest.mark.parametrize(
    "flag, number", [("LOG", 2), ("SPEC_ALLOW", 4), ("TSYNC", 0), ("WAIT_KILLABLE_RECV", 0)], ids=lambda each: str(each)
)
def test_flags(flag: str, number: int) -> None:
    assert read({**DENY, "flags": [f"SECCOMP_FILTER_FLAG_{flag}"]}).flags == number


def with_rule(**fields: object) -> dict[str, object]:
    return {**DENY, "syscalls": [ALLOW_A, {**ALLOW_A, **fields}]}


def with_argument(**fields: object) -> dict[str, object]:
    return with_rule(args=[ARGUMENT, {**ARGUMENT, **fields}])


INVALID: dict[str, tuple[object, str]] = {
    "a list": ([DENY], "seccomp profile: Invalid value: [...]: must be a JSON object"),
    "null": (None, "seccomp profile: Invalid value: null: must be a JSON object"),
    "no default": ({}, "defaultAction: Required value"),
    "a default of null": ({"defaultAction": None}, "defaultAction: Required value"),
    "an unknown default": ({"defaultAction": "ALLOW"}, 'defaultAction: Unsupported value: "ALLOW": supported values: '),
    "a number as default": ({"defaultAction": 1}, "defaultAction: Unsupported value: 1: supported values: "),
    "an object as default": ({"defaultAction": {}}, "defaultAction: Unsupported value: {...}: supported values: "),
    "a default errno": (
        {**DENY, "defaultErrnoRet": 4096},
        "defaultErrnoRet: Invalid value: 4096: must be an integer from 0 to 4095",
    ),
    "the name of a default errno": (
        {**DENY, "defaultErrno": "ENOPE"},
        'defaultErrno: Invalid value: "ENOPE": must be the name of an error, such as "EPERM"',
    ),
    "an attribute that is no error": (
        {**DENY, "defaultErrno": "errorcode"},
        'defaultErrno: Invalid value: "errorcode": must be the name of an error, such as "EPERM"',
    ),
    "an unknown architecture": (
        {**DENY, "architectures": ["SCMP_ARCH_X86", "x86"]},
        'architectures[1]: Unsupported value: "x86": supported values: "SCMP_ARCH_X86_64", ',
    ),
    "both lists of architectures": (
        {**DENY, "architectures": ["SCMP_ARCH_X86"], "archMap": [{"architecture": "SCMP_ARCH_X86_64"}]},
        'archMap: Forbidden: use either "architectures" or "archMap"',
    ),
    "no machine in the map": ({**DENY, "archMap": [{}]}, "archMap[0].architecture: Required value"),
    "an unknown machine in the map": (
        {**DENY, "archMap": [{"architecture": "amd64"}]},
        'archMap[0].architecture: Unsupported value: "amd64": supported values: ',
    ),
    "an unknown architecture in the map": (
        {**DENY, "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["i386"]}]},
        'archMap[0].subArchitectures[0]: Unsupported value: "i386": supported values: ',
    ),
    "an unknown flag": ({**DENY, "flags": ["LOG"]}, 'flags[0]: Unsupported value: "LOG": supported values: '),
    "rules that are no list": ({**DENY, "syscalls": {}}, "syscalls: Invalid value: {...}: must be a list"),
    "a rule that is no object": (
        {**DENY, "syscalls": ["read"]},
        'syscalls[0]: Invalid value: "read": must be a JSON object',
    ),
    "no names": (with_rule(names=[]), "syscalls[1].names: Required value: the names of one or more system calls"),
    "names that are no list": (with_rule(names="a"), 'syscalls[1].names: Invalid value: "a": must be a list'),
    "a name that is no string": (
        with_rule(names=["a", 0]),
        "syscalls[1].names[1]: Invalid value: 0: must be a string that is not empty",
    ),
    "an empty name": (
        with_rule(names=[""]),
        'syscalls[1].names[0]: Invalid value: "": must be a string that is not empty',
    ),
    "both name and names": (with_rule(name="b"), 'syscalls[1].name: Forbidden: use either "name" or "names"'),
    "no action": (with_rule(action=None), "syscalls[1].action: Required value"),
    "notifications": (
        with_rule(action="SCMP_ACT_NOTIFY"),
        'syscalls[1].action: Unsupported value: "SCMP_ACT_NOTIFY": supported values: "SCMP_ACT_KILL_THREAD", ',
    ),
    "a negative errno": (
        with_rule(errnoRet=-1),
        "syscalls[1].errnoRet: Invalid value: -1: must be an integer from 0 to 4095",
    ),
    "a boolean errno": (
        with_rule(errnoRet=True),
        "syscalls[1].errnoRet: Invalid value: true: must be an integer from 0 to 4095",
    ),
    "a number as the name of an errno": (
        with_rule(errno=1),
        'syscalls[1].errno: Invalid value: 1: must be the name of an error, such as "EPERM"',
    ),
    "an argument that is no object": (
        with_rule(args=[1]),
        "syscalls[1].args[0]: Invalid value: 1: must be a JSON object",
    ),
    "no index": (with_argument(index=None), "syscalls[1].args[1].index: Required value"),
    "the seventh argument": (
        with_argument(index=6),
        "syscalls[1].args[1].index: Invalid value: 6: must be an integer from 0 to 5",
    ),
    "no value": (with_argument(value=None), "syscalls[1].args[1].value: Required value"),
    "a value of 65 bits": (
        with_argument(value=1 << 64),
        "syscalls[1].args[1].value: Invalid value: 18446744073709551616: must be an integer from 0 to "
        "18446744073709551615",
    ),
    "a fraction": (
        with_argument(valueTwo=0.5),
        "syscalls[1].args[1].valueTwo: Invalid value: 0.5: must be an integer from 0 to 18446744073709551615",
    ),
    "no operator": (with_argument(op=None), "syscalls[1].args[1].op: Required value"),
    "an unknown operator": (
        with_argument(op="=="),
        'syscalls[1].args[1].op: Unsupported value: "==": supported values: "SCMP_CMP_NE", "SCMP_CMP_LT", ',
    ),
    "a selector that is no object": (
        with_rule(includes=[]),
        "syscalls[1].includes: Invalid value: [...]: must be a JSON object",
    ),
    "an unknown capability": (
        with_rule(excludes={"caps": ["CAP_NONE"]}),
        'syscalls[1].excludes.caps[0]: Invalid value: "CAP_NONE": must be the name of a capability, such as '
        '"CAP_SYS_ADMIN"',
    ),
    "a capability that is no string": (
        with_rule(excludes={"caps": [21]}),
        'syscalls[1].excludes.caps[0]: Invalid value: 21: must be the name of a capability, such as "CAP_SYS_ADMIN"',
    ),
    "a machine that is no string": (
        with_rule(includes={"arches": [1]}),
        "syscalls[1].includes.arches[0]: Invalid value: 1: must be a string that is not empty",
    ),
    "a kernel version": (
        with_rule(includes={"minKernel": "4.8.1"}),
        'syscalls[1].includes.minKernel: Invalid value: "4.8.1": must be a kernel version, such as "4.8"',
    ),
    "a number as kernel version": (
        with_rule(includes={"minKernel": 4.8}),
        'syscalls[1].includes.minKernel: Invalid value: 4.8: must be a kernel version, such as "4.8"',
    ),
    "a value of 80 characters is shown": (
        {**DENY, "defaultErrnoRet": "x" * 78},
        f'defaultErrnoRet: Invalid value: "{"x" * 78}": must be an integer from 0 to 4095',
    ),
    "a long value is shortened": (
        {**DENY, "defaultErrnoRet": "x" * 79},
        f'defaultErrnoRet: Invalid value: "{"x" * 76}...: must be an integer from 0 to 4095',
    ),
}


@pytest.mark.parametrize("document, message", INVALID.values(), ids=INVALID.keys())
def test_an_error_names_the_field_the_value_and_what_is_expected(document: object, message: str) -> None:
    with pytest.raises(ProfileError) as refused:
        read(document)
    text = str(refused.value)
    assert text.startswith(message) if message.endswith((": ", ", ")) else text == message


NO_JSON = {
    "nothing": b"",
    "half of a document": b'{"defaultAction": ',
    "not UTF-8": b'{"defaultAction": "\xff"}',
    "deep lists": b"[" * 500_000,
    "deep objects": b'{"a":' * 200_000,
    "a number with too many digits": b'{"defaultErrnoRet": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", NO_JSON.values(), ids=NO_JSON.keys())
def test_a_document_that_is_not_json(content: bytes) -> None:
    with pytest.raises(ProfileError, match=r"^seccomp profile: Invalid value: not a JSON document: "):
        read_profile(content)


def test_deep_values_in_an_error() -> None:
    depth = 500  # deep, but accepted by the parser
    with pytest.raises(ProfileError, match=r"^defaultAction: Unsupported value: \[\.\.\.\]"):
        read_profile(b'{"defaultAction": ' + b"[" * depth + b"]" * depth + b"}")


def test_the_size_of_a_document() -> None:
    document = json.dumps(DENY).encode()
    assert read_profile(document.ljust(MAX_BYTES)) == read(DENY)
    with pytest.raises(ProfileError, match=r"^seccomp profile: Too long: 1048577 bytes: must have at most 1048576 "):
        read_profile(document.ljust(MAX_BYTES + 1))
