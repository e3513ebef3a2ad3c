"""Replay of the recorded static pods."""

from collections.abc import Iterator

import msgspec

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.manifest import Document, read_documents
from podkeeper.model.messages import CONFIG_HASH_ANNOTATION
from podkeeper.rules.static.pod import FromFile, FromURL, NotAPod, static_pod_from
from tests.oracle.compare import Difference, Json, Replay, differences


def _static_pod(given: Json) -> Pod:
    origin = FromFile(given["source"]) if given["source_is_file"] else FromURL(given["source"])
    return static_pod_from(_only_document(given), origin, given["node_name"])


def _only_document(given: Json) -> Document:
    """Return the first object of a manifest. The recorded function decodes that one only, and accepts no list."""
    try:
        documents = read_documents(given["manifest"], given["source"]).all_valid()
    except BadInput as error:
        raise NotAPod(*error.problems) from error
    if not documents or documents[0].prefix:
        raise NotAPod(Problem("expected an object that is not in a list", file=given["source"]))
    return documents[0]


def _answer(given: Json) -> Json:
    try:
        pod = _static_pod(given)
    except NotAPod:
        return {"error": True, "is_pod": False}
    except BadInput:
        return {"error": True, "is_pod": True}
    annotations = pod.metadata.annotations or {}
    spec = msgspec.json.decode(msgspec.json.encode(pod.spec))
    return {
        "error": False,
        "is_pod": True,
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "labels": pod.metadata.labels,
        "other_annotations": {key: text for key, text in annotations.items() if key != CONFIG_HASH_ANNOTATION},
        "hash_annotation_equals_uid": annotations[CONFIG_HASH_ANNOTATION] == pod.metadata.uid,
        "uid": pod.metadata.uid,
        "node_name": spec["nodeName"],
        "dns_policy": spec["dnsPolicy"],
        "restart_policy": spec["restartPolicy"],
        "termination_grace_period_seconds": spec["terminationGracePeriodSeconds"],
        "tolerations": spec.get("tolerations"),
        "phase": pod.status.phase,
    }


class _StaticPods:
    """Rows contain only the class of a generated UID, so the replay stores the UID of each class."""

    def __init__(self) -> None:
        self._first: Json = None
        self._uid_of_class: dict[int, str] = {}
        self._class_of_uid: dict[str, int] = {}

    def __call__(self, given: Json, expected: Json) -> Iterator[Difference]:
        got = _answer(given)
        expected = dict(expected)
        if expected.pop("uid_generated", False):
            uid, label = got.pop("uid", ""), expected.pop("uid_class")
            self._reset_for_new_file(given, uid, label)
            yield from differences(expected.pop("uid_length"), len(uid), "uid_length")
            yield from differences(uid, self._uid_of_class.setdefault(label, uid), f"uid of class {label}")
            yield from differences(label, self._class_of_uid.setdefault(uid, label), "uid_class")
        yield from differences(expected, got)

    def _reset_for_new_file(self, given: Json, uid: str, label: int) -> None:
        """Each file numbers its classes from 0, in the order of their first rows."""
        if label == 0 and (given == self._first or self._uid_of_class.get(0) != uid):
            self._first = given
            self._uid_of_class.clear()
            self._class_of_uid.clear()


TABLES: dict[str, Replay] = {"static_pod": _StaticPods()}
