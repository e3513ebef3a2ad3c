"""Desired pods and their mirrors: lookups, translations, orphans."""

from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.engine.manager import PodManager
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION, PodUID
from podkeeper.rules.mirror import Couple, full_name, is_mirror_pod


def pod(name: str, uid: str, *, source: str = "api", mirror: bool = False) -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: source} | ({CONFIG_MIRROR_ANNOTATION: "hash"} if mirror else {})
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=uid, annotations=annotations))


WEB = pod("web", "web-1")
STATIC = pod("dns", "static-1", source="file")
MIRROR = pod("dns", "mirror-1", mirror=True)


def manager(*pods: Pod) -> PodManager:
    made = PodManager()
    for each in pods:
        made.update(each)
    return made


def test_a_pod_is_found_by_uid_and_by_full_name() -> None:
    holding = manager(WEB)
    assert holding.pod_by_uid(PodUID("web-1")) is holding.pod_by_full_name("web_ns") is WEB
    assert holding.pod_by_uid(PodUID("nobody")) is None


def test_a_pod_without_a_uid_is_found_under_an_empty_one() -> None:
    nameless = Pod(metadata=ObjectMeta(name="web", namespace="ns"))
    holding = manager(nameless)
    assert holding.pod_by_uid(PodUID("")) is nameless
    holding.remove(nameless)
    assert (holding.pods(), holding.pod_by_full_name("web_ns")) == ((), None)


def test_only_static_pods_are_listed_with_their_mirrors() -> None:
    holding = manager(WEB, STATIC, MIRROR)
    assert holding.static_pods() == ((STATIC, MIRROR),)
    assert holding.orphaned_mirror_full_names() == ()
    assert holding.couple(WEB) == Couple(WEB, None, asked_by_mirror=False)


def test_a_mirror_is_never_among_the_desired_pods() -> None:
    holding = manager(STATIC, MIRROR)
    assert (holding.pods(), holding.mirrors()) == ((STATIC,), (MIRROR,))
    assert holding.pod_by_uid(PodUID("mirror-1")) is None


def test_static_pod_and_mirror_find_each_other_in_either_order() -> None:
    for holding in (manager(STATIC, MIRROR), manager(MIRROR, STATIC)):
        assert holding.translate_uid(PodUID("mirror-1")) == "static-1"
        assert holding.pod_of_mirror(MIRROR) is STATIC
        assert holding.mirror_of_pod(STATIC) is MIRROR
        assert holding.couple(STATIC) == Couple(STATIC, MIRROR, asked_by_mirror=False)
        assert holding.couple(MIRROR) == Couple(STATIC, MIRROR, asked_by_mirror=True)
        assert holding.translations().pod_to_mirror == {"static-1": "mirror-1"}
        assert holding.translations().mirror_to_pod == {"mirror-1": "static-1"}


def test_any_other_uid_translates_to_itself() -> None:
    holding = manager(WEB, STATIC, MIRROR)
    assert [holding.translate_uid(PodUID(uid)) for uid in ("web-1", "static-1", "nobody", "")] == [
        "web-1", "static-1", "nobody", "",
    ]  # fmt: skip


def test_a_static_pod_without_a_mirror_is_listed_as_such() -> None:
    holding = manager(WEB, STATIC)
    assert holding.translations().pod_to_mirror == {"static-1": None}
    assert holding.static_pods() == ((STATIC, None),)


def test_a_mirror_is_orphaned_while_no_desired_pod_has_its_name() -> None:
    holding = manager(WEB, STATIC, MIRROR)
    assert holding.orphaned_mirror_full_names() == ()
    holding.remove(STATIC)
    assert holding.orphaned_mirror_full_names() == ("dns_ns",)
    assert holding.couple(MIRROR) == Couple(None, MIRROR, asked_by_mirror=True)
    holding.remove(MIRROR)
    assert (holding.orphaned_mirror_full_names(), holding.mirrors()) == ((), ())


def test_a_translation_is_forgotten_with_the_mirror() -> None:
    holding = manager(STATIC, MIRROR)
    holding.remove(STATIC)
    assert holding.translate_uid(PodUID("mirror-1")) == "static-1"
    holding.remove(MIRROR)
    assert holding.translate_uid(PodUID("mirror-1")) == "mirror-1"


def test_a_successor_of_the_same_name_takes_the_mirror_over() -> None:
    holding = manager(STATIC, MIRROR, pod("dns", "static-2", source="file"))
    assert holding.translate_uid(PodUID("mirror-1")) == "static-2"
    assert len(holding.pods()) == 2


def test_removing_an_unknown_pod_is_no_trouble() -> None:
    holding = manager(WEB)
    holding.remove(STATIC)
    holding.remove(MIRROR)
    assert holding.pods() == (WEB,)


ANY = st.builds(
    pod,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["1", "2", "3", "4"]),
    source=st.sampled_from(["file", "api"]),
    mirror=st.booleans(),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(ANY, max_size=10))
def test_after_updates_alone_each_name_leads_to_the_last_of_its_kind(history: list[Pod]) -> None:
    holding = manager(*history)
    last = {(full_name(pod), is_mirror_pod(pod)): pod for pod in history}
    for name in ("a_ns", "b_ns"):
        desired, mirror = last.get((name, False)), last.get((name, True))
        assert holding.pod_by_full_name(name) is desired
        assert (name in holding.orphaned_mirror_full_names()) == (mirror is not None and desired is None)
    assert holding.translations().mirror_to_pod.keys() <= {pod.metadata.uid for pod in holding.mirrors()}
