"""Which pod somebody means."""

import pytest

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION
from podkeeper.sources.names import find_pod, plain_name


def pod(name: str, namespace: str = "default", *, source: str = "file", uid: str = "", mirror: bool = False) -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: source} | ({CONFIG_MIRROR_ANNOTATION: "x"} if mirror else {})
    metadata = ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{namespace}-{name}", annotations=annotations)
    return Pod(metadata=metadata, spec=PodSpec(containers=(Container(name="a", image="host"),), node_name="Node-1"))


PODS = (
    pod("web-node-1"),
    pod("db-node-1"),
    pod("db-node-1", "prod"),
    pod("api", source="api"),
    pod("api-node-1"),
    pod("job-node-1", "prod", source="api"),
    pod("web-node-1", source="api", mirror=True),
)

FOUND = {
    "by its name": ("web-node-1", "default/web-node-1"),
    "by its plain name": ("web", "default/web-node-1"),
    "by namespace and name": ("prod/db-node-1", "prod/db-node-1"),
    "by namespace and plain name": ("prod/db", "prod/db-node-1"),
    "by its UID": ("uid-default-web-node-1", "default/web-node-1"),
    "with spaces around": (" web ", "default/web-node-1"),
    "by the letter before the plain name": ("api", "default/api"),
    "a pod of the API has no plain name": ("job-node-1", "prod/job-node-1"),
}


@pytest.mark.parametrize("text, called", FOUND.values(), ids=FOUND.keys())
def test_a_pod_is_found(text: str, called: str) -> None:
    found = find_pod(text, PODS)
    assert f"{found.metadata.namespace}/{found.metadata.name}" == called
    assert not (found.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION)


NOT_FOUND = {
    "two have the name": ("db-node-1", "use one of: default/db-node-1, prod/db-node-1"),
    "two have the plain name": ("db", "2 pods match"),
    "another namespace": ("other/web", "did you mean default/web-node-1?"),
    "a pod of the API by less than its name": ("job", "pod 'job' not found"),
    "a slip of the pen": ("wbe", "did you mean default/web-node-1?"),
    "nothing like it": ("zzzzzz", "available pods: default/api, "),
    "no text": ("", "pod '' not found"),
}


@pytest.mark.parametrize("text, message", NOT_FOUND.values(), ids=NOT_FOUND.keys())
def test_unknown_and_ambiguous_names_are_rejected(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        find_pod(text, PODS)
    assert message in str(refused.value)


def test_where_there_are_no_pods_that_is_said() -> None:
    with pytest.raises(BadInput, match="there are no pods"):
        find_pod("web", ())


def test_of_two_pods_of_one_name_the_later_is_meant() -> None:
    old, new = pod("web-node-1", uid="old"), pod("web-node-1", uid="new")
    assert find_pod("web", (old, new)) is new


def test_a_pod_that_is_named_like_its_node_keeps_a_name() -> None:
    assert [plain_name(each) for each in PODS[:4]] == ["web", "db", "db", "api"]
