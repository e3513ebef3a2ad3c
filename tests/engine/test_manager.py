"""Desired pods and their mirror pods: lookups, translations, orphans."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from podkeeper.engine.manager import PodManager
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.static.mirror import PodAndMirror, full_name, is_mirror_pod
from podkeeper.testing import build

pod = partial(build.pod, namespace="ns", source="api")


WEB = pod("web", uid="web-1")
STATIC = pod("dns", uid="static-1", source="file")
MIRROR = pod("dns", uid="mirror-1", mirror="hash")


def manager(*pods: Pod) -> PodManager:
    made = PodManager()
    for each in pods:
        made.update(each)
    return made


def test_a_pod_is_found_by_uid_and_by_full_name() -> None:
    known = manager(WEB)
    assert known.pod_by_uid(PodUID("web-1")) is known.pod_by_full_name("web_ns") is WEB
    assert known.pod_by_uid(PodUID("unknown")) is None


def test_a_pod_without_a_uid_is_found_under_an_empty_one() -> None:
    without_uid = build.pod("web", namespace="ns", uid="")
    known = manager(without_uid)
    assert known.pod_by_uid(PodUID("")) is without_uid
    known.remove(without_uid)
    assert (known.pods(), known.pod_by_full_name("web_ns")) == ((), None)


def test_an_api_pod_has_no_mirror_pod() -> None:
    known = manager(WEB, STATIC, MIRROR)
    assert known.orphaned_mirror_full_names() == ()
    assert known.pair_of(WEB) == PodAndMirror(WEB, None, was_mirror=False)


def test_a_mirror_pod_is_not_a_desired_pod() -> None:
    known = manager(STATIC, MIRROR)
    assert (known.pods(), known.mirrors()) == ((STATIC,), (MIRROR,))
    assert known.pod_by_uid(PodUID("mirror-1")) is None


def test_static_pod_and_mirror_pod_are_matched_in_either_order() -> None:
    for known in (manager(STATIC, MIRROR), manager(MIRROR, STATIC)):
        assert known.translate_uid(PodUID("mirror-1")) == "static-1"
        assert known.pod_of_mirror(MIRROR) is STATIC
        assert known.mirror_of_pod(STATIC) is MIRROR
        assert known.pair_of(STATIC) == PodAndMirror(STATIC, MIRROR, was_mirror=False)
        assert known.pair_of(MIRROR) == PodAndMirror(STATIC, MIRROR, was_mirror=True)
        assert known.translations().pod_to_mirror == {"static-1": "mirror-1"}
        assert known.translations().mirror_to_pod == {"mirror-1": "static-1"}


def test_any_other_uid_translates_to_itself() -> None:
    known = manager(WEB, STATIC, MIRROR)
    assert [known.translate_uid(PodUID(uid)) for uid in ("web-1", "static-1", "unknown", "")] == [
        "web-1", "static-1", "unknown", "",
    ]  # fmt: skip


def test_a_static_pod_without_a_mirror_pod_translates_to_none() -> None:
    known = manager(WEB, STATIC)
    assert known.translations().pod_to_mirror == {"static-1": None}


def test_a_mirror_pod_without_a_desired_pod_is_orphaned() -> None:
    known = manager(WEB, STATIC, MIRROR)
    assert known.orphaned_mirror_full_names() == ()
    known.remove(STATIC)
    assert known.orphaned_mirror_full_names() == ("dns_ns",)
    assert known.pair_of(MIRROR) == PodAndMirror(None, MIRROR, was_mirror=True)
    known.remove(MIRROR)
    assert (known.orphaned_mirror_full_names(), known.mirrors()) == ((), ())


def test_a_translation_is_removed_with_the_mirror_pod() -> None:
    known = manager(STATIC, MIRROR)
    known.remove(STATIC)
    assert known.translate_uid(PodUID("mirror-1")) == "static-1"
    known.remove(MIRROR)
    assert known.translate_uid(PodUID("mirror-1")) == "mirror-1"


def test_a_new_static_pod_of_the_same_name_gets_the_mirror_pod() -> None:
    known = manager(STATIC, MIRROR, pod("dns", uid="static-2", source="file"))
    assert known.translate_uid(PodUID("mirror-1")) == "static-2"
    assert len(known.pods()) == 2


def test_removing_an_unknown_pod_does_nothing() -> None:
    known = manager(WEB)
    known.remove(STATIC)
    known.remove(MIRROR)
    assert known.pods() == (WEB,)


ANY = st.builds(
    pod,
    st.sampled_from(["a", "b"]),
    uid=st.sampled_from(["1", "2", "3", "4"]),
    source=st.sampled_from(["file", "api"]),
    mirror=st.sampled_from([None, "hash"]),
)


@given(st.lists(ANY, max_size=10))
def test_each_full_name_leads_to_its_last_update(history: list[Pod]) -> None:
    known = manager(*history)
    last = {(full_name(pod), is_mirror_pod(pod)): pod for pod in history}
    for name in ("a_ns", "b_ns"):
        desired, mirror = last.get((name, False)), last.get((name, True))
        assert known.pod_by_full_name(name) is desired
        assert (name in known.orphaned_mirror_full_names()) == (mirror is not None and desired is None)
    assert known.translations().mirror_to_pod.keys() <= {pod.metadata.uid for pod in known.mirrors()}
