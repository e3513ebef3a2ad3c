"""Attacks by manifests: small files that stall the agent or never end. Each took seconds to minutes before the fix."""

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, EnvVar, Pod
from podkeeper.model.manifest import read_documents
from podkeeper.rules.container.downward import PodContext
from podkeeper.rules.container.environment import invocation_of
from podkeeper.rules.validate.pod import validate_pod
from podkeeper.testing.build import container, pod


def test_a_repeated_key_in_a_large_object_is_found_in_one_pass() -> None:
    """Algorithmic complexity (the class of CVE-2019-11253, the "billion laughs" of Kubernetes)."""
    keys = ", ".join(f'"{number}": 0' for number in range(40_000))
    read = read_documents(f'{{{keys}, "39999": 1}}', "big.json")
    assert [problem.message for problem in read.problems] == ['Duplicate value: key "39999" already set in map']


def test_variables_that_double_are_refused() -> None:
    """The class of CVE-2019-11253: 22 variables, each of which contains the one before twice."""
    env = [EnvVar(name="A0", value="x" * 500)]
    env += [EnvVar(name=f"A{number}", value=f"$(A{number - 1})" * 2) for number in range(1, 60)]
    with pytest.raises(NotConfigurable, match="cannot expand variable A9"):
        invocation_of(Container(name="c", env=tuple(env)), PodContext(pod=Pod()), {})


@pytest.mark.parametrize("uid", ["../../../etc", "a/b", "..", "x" * 500, "a\0b"])
def test_a_uid_that_is_no_file_name_is_refused(uid: str) -> None:
    """Path traversal (CWE-22): the UID is part of the paths of volumes, logs and cgroups."""
    problems = validate_pod(pod("web", container(), uid=uid))
    assert [problem.field for problem in problems] == ["metadata.uid"]
