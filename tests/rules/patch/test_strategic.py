"""Strategic merge patch: what each directive and strategy does, what is refused, and what a diff looks like.

`test_kubectl.py` gives the rows of `APPLY` and `REFUSED` to a real kubectl as well.
"""

from typing import Any

import pytest

from podkeeper.rules.patch import strategic
from podkeeper.rules.patch.errors import PatchConflict, PatchError, PreconditionFailed, UnsupportedKind
from tests.rules.patch.patching import DEPLOYMENT, POD, SERVICE, deployment, named, service, wire, with_finalizers

A: dict[str, Any] = {"name": "a", "image": "x"}
A_WITH_ENV: dict[str, Any] = {"name": "a", "env": [{"name": "K", "value": "1"}, {"name": "L", "value": "2"}]}
PORT_80: dict[str, Any] = {"port": 80, "targetPort": 8080}
READY: dict[str, Any] = {"type": "Ready", "status": "False"}
SCHEDULED: dict[str, Any] = {"type": "PodScheduled", "status": "True"}
ROLLING: dict[str, Any] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}


def spec(**members: Any) -> dict[str, Any]:
    return {"spec": members}


def metadata(**members: Any) -> dict[str, Any]:
    return {"metadata": members}


def order(field: str, *names: str) -> dict[str, Any]:
    return {f"$setElementOrder/{field}": named(*names)}


def pod_with(status: dict[str, Any]) -> dict[str, Any]:
    return {**wire(A), "status": status}


def owned_by(*owners: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "ownerReferences": list(owners)}}


APPLY: dict[str, tuple[Any, Any, Any]] = {
    # Objects.
    "a member is set": (wire(A), spec(nodeName="n"), wire(A, nodeName="n")),
    "null removes a member": (wire(A, nodeName="n"), spec(nodeName=None), wire(A)),
    "null for an absent member does nothing": (wire(A), spec(nodeName=None), wire(A)),
    "an object is merged": (
        wire(A, nodeSelector={"a": "1"}), spec(nodeSelector={"b": "2"}), wire(A, nodeSelector={"a": "1", "b": "2"})),
    "an object with $patch replace is replaced": (
        wire(A, nodeSelector={"a": "1"}), spec(nodeSelector={"b": "2", "$patch": "replace"}),
        wire(A, nodeSelector={"b": "2"})),
    "an object with $patch delete is emptied": (
        wire(A, nodeSelector={"a": "1"}), spec(nodeSelector={"$patch": "delete"}), wire(A, nodeSelector={})),
    "deleting an absent object does nothing": (wire(A), spec(nodeSelector={"$patch": "delete"}), wire(A)),
    "an added object comes without its nulls": (
        wire(A), spec(securityContext={"runAsUser": 1, "fsGroup": None}), wire(A, securityContext={"runAsUser": 1})),
    "an object replaces a scalar": (
        wire(A, securityContext=1), spec(securityContext={"runAsUser": 1}), wire(A, securityContext={"runAsUser": 1})),
    "the whole object can be replaced": (
        wire(A), {"$patch": "replace", "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}),
    # Lists of objects.
    "an item is merged into the item with its key": (wire(A), spec(containers=[{"name": "a", "image": "y"}]),
                                            wire({"name": "a", "image": "y"})),
    "a new item comes before existing ones": (
        wire(A), spec(containers=[{"name": "b", "image": "y"}]), wire({"name": "b", "image": "y"}, A)),
    "a list is added": (wire(A), spec(imagePullSecrets=named("s")), wire(A, imagePullSecrets=named("s"))),
    "an item is deleted": (
        wire(A, {"name": "b"}), spec(containers=[{"name": "a", "$patch": "delete"}]), wire({"name": "b"})),
    "deleting an absent item does nothing": (wire(A), spec(containers=[{"name": "z", "$patch": "delete"}]), wire(A)),
    "an item is deleted and created again": (
        wire({"name": "a", "image": "x", "tty": True}),
        spec(containers=[{"name": "a", "$patch": "delete"}, {"name": "a", "image": "y"}]),
        wire({"name": "a", "image": "y"})),
    "a list with $patch replace is replaced": (
        wire(A, {"name": "b"}), spec(containers=[{"$patch": "replace"}, {"name": "c"}]), wire({"name": "c"})),
    "a list with $patch replace alone is emptied": (wire(A), spec(containers=[{"$patch": "replace"}]), wire()),
    "the marker of a replaced list may stand anywhere": (
        wire(A), spec(containers=[{"name": "c"}, {"$patch": "replace"}, {"name": "b"}]), wire(*named("c", "b"))),
    "an added list comes without deletions": (
        wire(A), spec(imagePullSecrets=[{"name": "s"}, {"name": "t", "$patch": "delete"}]),
        wire(A, imagePullSecrets=named("s"))),
    "an empty list merges nothing": (wire(A), spec(containers=[]), wire(A)),
    "null removes a list": (wire(A, imagePullSecrets=named("s")), spec(imagePullSecrets=None), wire(A)),
    "duplicates in a patch are merged one after the other": (
        wire(A), spec(containers=[{"name": "b", "image": "x"}, {"name": "b", "tty": True}]),
        wire({"name": "b", "image": "x", "tty": True}, A)),
    "of duplicates in the object the first is patched": (
        service(PORT_80, {"port": 80, "protocol": "UDP"}), spec(ports=[{"port": 80, "targetPort": 1}]),
        service({"port": 80, "targetPort": 1}, {"port": 80, "protocol": "UDP"})),
    "lists within items are merged": (
        wire(A_WITH_ENV), spec(containers=[{"name": "a", "env": [{"name": "L", "value": "3"}]}]),
        wire({"name": "a", "env": [{"name": "K", "value": "1"}, {"name": "L", "value": "3"}]})),
    "items within items are deleted": (
        wire(A_WITH_ENV), spec(containers=[{"name": "a", "env": [{"name": "K", "$patch": "delete"}]}]),
        wire({"name": "a", "env": [{"name": "L", "value": "2"}]})),
    "a number can identify an item": (
        service(PORT_80), spec(ports=[{"port": 443}, {"port": 80, "name": "http"}]),
        service({"port": 443}, {**PORT_80, "name": "http"})),
    "container ports are merged by port": (
        wire({"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}),
        spec(containers=[{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]),
        wire({"name": "a", "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}]})),
    "mounts are merged by path": (
        wire({"name": "a", "volumeMounts": [{"mountPath": "/a", "name": "v"}]}),
        spec(containers=[{"name": "a", "volumeMounts": [{"mountPath": "/b", "name": "v"}]}]),
        wire({"name": "a", "volumeMounts": [{"mountPath": "/b", "name": "v"}, {"mountPath": "/a", "name": "v"}]})),
    "conditions are merged by type": (
        pod_with({"conditions": [SCHEDULED, READY]}), {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        pod_with({"conditions": [SCHEDULED, {"type": "Ready", "status": "True"}]})),
    "pod addresses are merged": (
        pod_with({"podIPs": [{"ip": "10.0.0.1"}]}), {"status": {"podIPs": [{"ip": "fd::1"}]}},
        pod_with({"podIPs": [{"ip": "fd::1"}, {"ip": "10.0.0.1"}]})),
    "owners are merged by uid": (
        owned_by({"uid": "u", "name": "a"}), metadata(ownerReferences=[{"uid": "u", "controller": True}]),
        owned_by({"uid": "u", "name": "a", "controller": True})),
    # Lists that are replaced.
    "tolerations are replaced": (
        wire(A, tolerations=[{"key": "a"}]), spec(tolerations=[{"key": "b"}]), wire(A, tolerations=[{"key": "b"}])),
    "arguments are replaced": (
        wire({"name": "a", "args": ["x", "y"]}), spec(containers=[{"name": "a", "args": ["z"]}]),
        wire({"name": "a", "args": ["z"]})),
    "container statuses are replaced": (
        pod_with({"containerStatuses": [{"name": "a", "ready": False}, {"name": "b", "ready": True}]}),
        {"status": {"containerStatuses": [{"name": "a", "ready": True}]}},
        pod_with({"containerStatuses": [{"name": "a", "ready": True}]})),
    # Lists of scalars.
    "finalizers are a set": (
        with_finalizers("f", "g"), metadata(finalizers=["g", "h"]), with_finalizers("f", "g", "h")),
    "finalizers are deleted by name": (
        with_finalizers("f", "g"), {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f", "z"]}},
        with_finalizers("g")),
    "finalizers are deleted and added": (
        with_finalizers("f", "g"),
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"], "finalizers": ["h"]}}, with_finalizers("h", "g")),
    "finalizers are sorted by the order": (
        with_finalizers("f", "g"), {"metadata": {"$setElementOrder/finalizers": ["g", "f"]}},
        with_finalizers("g", "f")),
    "deleting from an absent list does nothing": (
        wire(A), {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}, wire(A)),
    # Order.
    "an order alone moves items": (
        wire(*named("a", "b", "c")), spec(**order("containers", "c", "a", "b")), wire(*named("c", "a", "b"))),
    "items only the server has keep their place among the ordered": (
        wire(*named("a", "x", "b", "y")), spec(**order("containers", "b", "a")), wire(*named("x", "b", "a", "y"))),
    "new items are placed by the order": (
        wire(*named("a", "b")), spec(containers=named("c"), **order("containers", "a", "c", "b")),
        wire(*named("a", "c", "b"))),
    "new items are placed among items only the server has": (
        wire(*named("s", "a", "t")), spec(containers=named("c"), **order("containers", "c", "a")),
        wire(*named("c", "s", "a", "t"))),
    "deleted items need not be in the order": (
        wire(*named("a", "b", "c")),
        spec(containers=[{"name": "b", "$patch": "delete"}], **order("containers", "c", "a")), wire(*named("c", "a"))),
    "an order for an absent list is ignored": (wire(A), spec(**order("imagePullSecrets", "s")), wire(A)),
    "an order comes with a new list": (
        wire(A), spec(imagePullSecrets=named("t", "s"), **order("imagePullSecrets", "t", "s")),
        wire(A, imagePullSecrets=named("t", "s"))),
    # Members to retain.
    "only retained members stay": (
        deployment(**ROLLING), spec(strategy={"type": "Recreate", "$retainKeys": ["type"]}),
        deployment(type="Recreate")),
    "without a list all members stay": (
        deployment(**ROLLING), spec(strategy={"type": "Recreate"}),
        deployment(type="Recreate", rollingUpdate={"maxSurge": 1})),
    "a volume changes its kind": (
        wire(A, volumes=[{"name": "v", "emptyDir": {}}]),
        spec(volumes=[{"name": "v", "hostPath": {"path": "/x"}, "$retainKeys": ["name", "hostPath"]}]),
        wire(A, volumes=[{"name": "v", "hostPath": {"path": "/x"}}])),
}  # fmt: skip

REFUSED: dict[str, tuple[Any, Any, str]] = {
    "an item without its key": (wire(A), spec(containers=[{"image": "y"}]), "spec.containers[0]: "),
    "an unknown directive": (
        wire(A), spec(nodeSelector={}, containers=[{"name": "a", "$patch": "upsert"}]), "'upsert'",
    ),
    "an unknown directive of an object": (
        wire(A, nodeSelector={}), spec(nodeSelector={"$patch": "merge"}), "spec.nodeSelector.$patch: "),
    "$patch merge": (wire(A), spec(containers=[{"name": "a", "$patch": "merge"}]), "without $patch"),
    "an item of another type": (wire(A), spec(containers=["a"]), "an item is a string"),
    "lists of lists": (with_finalizers("f"), metadata(finalizers=[["g"]]), "metadata.finalizers[0]: "),
    "a member that is not retained": (
        deployment(**ROLLING), spec(strategy={"type": "Recreate", "$retainKeys": ["rollingUpdate"]}), "'type'"),
    "retained members that are not a list": (
        deployment(**ROLLING), spec(strategy={"$retainKeys": "type"}), "spec.strategy.$retainKeys: "),
    "an item that the order leaves out": (
        wire(A), spec(containers=named("b", "c"), **order("containers", "b")), "spec.containers[1]: "),
    "items in another order than the order": (
        wire(A), spec(containers=named("b", "c"), **order("containers", "c", "b")), "not in that order"),
    "an order that is not a list": (wire(A), spec(**{"$setElementOrder/containers": "a"}), "expected a list"),
    "an order for nothing": (wire(A), spec(**{"$setElementOrder": []}), "expected $setElementOrder/<list>"),
    "a deletion for nothing": (
        with_finalizers("f"), metadata(**{"$deleteFromPrimitiveListfinalizers": ["f"]}),
        "expected $deleteFromPrimitiveList/<list>"),
}  # fmt: skip

KIND_OF = {"Pod": POD, "Deployment": DEPLOYMENT, "Service": SERVICE}


@pytest.mark.parametrize("original, patch, expected", APPLY.values(), ids=APPLY.keys())
def test_apply(original: Any, patch: Any, expected: Any) -> None:
    assert strategic.apply(original, patch, KIND_OF[original["kind"]]) == expected


@pytest.mark.parametrize("original, patch, message", REFUSED.values(), ids=REFUSED.keys())
def test_refused(original: Any, patch: Any, message: str) -> None:
    with pytest.raises(PatchError) as caught:
        strategic.apply(original, patch, KIND_OF[original["kind"]])
    assert message in str(caught.value)
    assert "cannot" in str(caught.value)


# A store of plain JSON must remove more than apimachinery, which decodes the result into typed objects.

CAREFUL: dict[str, tuple[Any, Any, Any]] = {
    "directives do not stay in a new item": (
        wire(A), spec(containers=[{"name": "b", "$setElementOrder/ports": [], "$retainKeys": ["name"]}]),
        wire({"name": "b"}, A)),
    "directives do not stay in a replaced list": (
        wire(A, tolerations=[]), spec(tolerations=[{"key": "k", "$patch": "replace"}]),
        wire(A, tolerations=[{"key": "k"}])),
    "directives do not stay in a replaced object": (
        wire(A, nodeSelector={"a": "1"}), spec(nodeSelector={"$patch": "replace", "$retainKeys": [], "b": "2"}),
        wire(A, nodeSelector={"b": "2"})),
    "deleting a finalizer comes before adding it": (
        with_finalizers("f", "g"), {"metadata": {"finalizers": ["f"], "$deleteFromPrimitiveList/finalizers": ["f"]}},
        with_finalizers("f", "g")),
    "null deletes a whole list of scalars": (
        with_finalizers("f"), {"metadata": {"$deleteFromPrimitiveList/finalizers": None}},
        {**wire(), "spec": None, "metadata": {"name": "web"}}),
    "an order beside an empty list is harmless": (
        wire(), spec(containers=[], **order("containers", "a")), wire()),
}  # fmt: skip


@pytest.mark.parametrize("original, patch, expected", CAREFUL.values(), ids=CAREFUL.keys())
def test_cases_where_apimachinery_differs(original: Any, patch: Any, expected: Any) -> None:
    expected = {key: value for key, value in expected.items() if value is not None}
    assert strategic.apply(original, patch, POD) == expected


GARBAGE: dict[str, tuple[Any, Any, str]] = {
    "a list for a patch": (wire(A), [], "the patch: it is a list"),
    "a string for a patch": (wire(A), "x", "the patch: it is a string"),
    "nothing for a patch": (wire(A), None, "the patch: it is null"),
    "a number for an object": (1, {}, "the original: it is a number"),
    "null among items": (wire(A), spec(containers=[None]), "an item is null"),
    "a key that is an object": (wire(A), spec(containers=[{"name": {}}]), "the 'name' of an item is an object"),
    "a key that is null": (wire(A), spec(containers=[{"name": None}]), "the 'name' of an item is null"),
    "objects deleted like scalars": (
        wire(A), spec(**{"$deleteFromPrimitiveList/containers": [{"name": "a"}]}), "$patch: delete"),
    "a deletion that is not a list": (
        with_finalizers("f"), metadata(**{"$deleteFromPrimitiveList/finalizers": "f"}), "expected a list"),
    "an order for an atomic list of objects": (
        wire(A, tolerations=[{"key": "a"}]), spec(**{"$setElementOrder/tolerations": [{"key": "a"}]}), "is an object"),
    "a number merged into strings": (with_finalizers("f"), metadata(finalizers=[1]), "scalars of one type"),
    "a number deleted from strings": (
        with_finalizers("f"), metadata(**{"$deleteFromPrimitiveList/finalizers": [1]}), "an item is a number"),
    "objects among finalizers": (
        with_finalizers({"a": 1}), metadata(finalizers=[{"a": 1}]), "the list contains objects, expected scalars"),
}  # fmt: skip


@pytest.mark.parametrize("original, patch, message", GARBAGE.values(), ids=GARBAGE.keys())
def test_invalid_input(original: Any, patch: Any, message: str) -> None:
    with pytest.raises(PatchError, match=message.replace("$", r"\$").replace("(", r"\(")):
        strategic.apply(original, patch, POD)


@pytest.mark.parametrize("kind", ["example.com/v1/Widget", "Pod", "v2/Pod", ""])
def test_an_unknown_kind_is_an_error_that_suggests_merge_patch(kind: str) -> None:
    with pytest.raises(UnsupportedKind, match="merge-patch"):
        strategic.apply({}, {}, kind)


# Diffs, as apimachinery writes them.

TWO_WAY: dict[str, tuple[Any, Any, Any]] = {
    "a member is set": (wire(A), wire(A, nodeName="n"), spec(nodeName="n")),
    "a removed member is null": (wire(A, nodeName="n"), wire(A), spec(nodeName=None)),
    "a changed item is named, and the order is given": (
        wire(A, {"name": "b"}), wire({"name": "a", "image": "y"}, {"name": "b"}),
        spec(containers=[{"name": "a", "image": "y"}], **order("containers", "a", "b"))),
    "a removed item is deleted": (
        wire(A, {"name": "b"}), wire(A),
        spec(containers=[{"name": "b", "$patch": "delete"}], **order("containers", "a"))),
    "changed items come in the new order, deletions last": (
        wire(*named("a", "b", "c")), wire({"name": "d"}, {"name": "b", "image": "x"}),
        spec(containers=[{"name": "d"}, {"name": "b", "image": "x"}, {"name": "a", "$patch": "delete"},
                         {"name": "c", "$patch": "delete"}], **order("containers", "d", "b"))),
    "a new order needs no items": (
        wire(*named("a", "b")), wire(*named("b", "a")), spec(**order("containers", "b", "a"))),
    "the last item needs no order": (wire(A), wire(), spec(containers=[{"name": "a", "$patch": "delete"}])),
    "a first item needs no order": (wire(), wire(A), spec(containers=[A])),
    "an atomic list is given whole": (
        wire(A, tolerations=[{"key": "a"}]), wire(A, tolerations=[{"key": "a"}, {"key": "b"}]),
        spec(tolerations=[{"key": "a"}, {"key": "b"}])),
    "a set of scalars lists additions and deletions apart": (
        with_finalizers("f", "g"), with_finalizers("h", "g"),
        {"metadata": {"finalizers": ["h"], "$deleteFromPrimitiveList/finalizers": ["f"],
                      "$setElementOrder/finalizers": ["h", "g"]}}),
    "scalars in a new order": (
        with_finalizers("g", "f"), with_finalizers("f", "g"),
        {"metadata": {"$setElementOrder/finalizers": ["f", "g"]}}),
    "members to retain are listed": (
        deployment(**ROLLING), deployment(type="Recreate"),
        spec(strategy={"type": "Recreate", "rollingUpdate": None, "$retainKeys": ["type"]})),
    "a volume that changes its kind": (
        wire(A, volumes=[{"name": "v", "emptyDir": {}}]), wire(A, volumes=[{"name": "v", "hostPath": {"path": "/x"}}]),
        spec(volumes=[{"name": "v", "hostPath": {"path": "/x"}, "emptyDir": None, "$retainKeys": ["hostPath", "name"]}],
             **order("volumes", "v"))),
    "a null that stays is no difference": (
        pod_with({"conditions": [{**READY, "lastProbeTime": None}]}),
        pod_with({"conditions": [{**READY, "lastProbeTime": None}]}), {}),
}  # fmt: skip


@pytest.mark.parametrize("original, modified, patch", TWO_WAY.values(), ids=TWO_WAY.keys())
def test_two_way_diff(original: Any, modified: Any, patch: Any) -> None:
    kind = KIND_OF[original["kind"]]
    assert strategic.two_way_diff(original, modified, kind) == patch
    assert strategic.apply(original, patch, kind) == modified


LAST, WANTED = wire(*named("a", "b"), nodeName="n"), wire({"name": "a", "image": "y"})
CURRENT = wire(*named("a", "b", "injected"), nodeName="n", hostNetwork=True)

THREE_WAY: dict[str, tuple[Any, Any, Any, Any]] = {
    "removed members are deleted, those of other clients stay": (
        LAST, WANTED, CURRENT,
        spec(nodeName=None, containers=[{"name": "a", "image": "y"}, {"name": "b", "$patch": "delete"}],
             **order("containers", "a"))),
    "nothing was applied before": (
        {}, WANTED, CURRENT, spec(containers=[{"name": "a", "image": "y"}], **order("containers", "a"))),
    "no change": (WANTED, WANTED, WANTED, {}),
    "a finalizer of another client stays": (
        with_finalizers("f", "g"), with_finalizers("g"), with_finalizers("f", "g", "x"),
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"], "$setElementOrder/finalizers": ["g"]}}),
    "members to retain are written once": (
        deployment(**ROLLING), deployment(type="Recreate"), deployment(**ROLLING),
        spec(strategy={"type": "Recreate", "rollingUpdate": None, "$retainKeys": ["type"]})),
}  # fmt: skip


@pytest.mark.parametrize("original, modified, current, patch", THREE_WAY.values(), ids=THREE_WAY.keys())
def test_three_way_diff(original: Any, modified: Any, current: Any, patch: Any) -> None:
    assert strategic.three_way_diff(original, modified, current, KIND_OF[modified["kind"]]) == patch


IMAGE_X, IMAGE_Y, IMAGE_Z = (wire({"name": "a", "image": image}) for image in "xyz")

CONFLICTS: dict[str, tuple[Any, Any, Any, str]] = {
    "both changed an image": (IMAGE_X, IMAGE_Y, IMAGE_Z, "spec.containers[name=a].image"),
    "one deleted what the other changed": (
        wire(A, nodeSelector={"a": "1"}), wire(A), wire(A, nodeSelector={"a": "2"}), "spec.nodeSelector"),
    "both changed an atomic list": (
        wire(A, tolerations=[]), wire(A, tolerations=[{"key": "a"}]), wire(A, tolerations=[{"key": "b"}, {"key": "c"}]),
        "spec.tolerations"),
    "both changed the arguments": (
        wire({"name": "a", "args": ["x"]}), wire({"name": "a", "args": ["y"]}), wire({"name": "a", "args": ["z"]}),
        "spec.containers[name=a].args"),
    "one deletes the item that the other changes": (
        wire(A, {"name": "b"}), wire(A), wire(A, {"name": "b", "tty": True}), "spec.containers[name=b]"),
}  # fmt: skip


@pytest.mark.parametrize("original, modified, current, field", CONFLICTS.values(), ids=CONFLICTS.keys())
def test_conflict(original: Any, modified: Any, current: Any, field: str) -> None:
    with pytest.raises(PatchConflict) as caught:
        strategic.three_way_diff(original, modified, current, POD, overwrite=False)
    assert caught.value.field == field
    assert strategic.three_way_diff(original, modified, current, POD, overwrite=True)


@pytest.mark.parametrize(
    "original, modified, current",
    [
        (IMAGE_X, IMAGE_Y, IMAGE_X),
        (IMAGE_X, IMAGE_Y, IMAGE_Y),
        (with_finalizers("f"), with_finalizers("f", "g"), with_finalizers("f", "h")),
        (with_finalizers("f", "g"), with_finalizers("f"), with_finalizers("g")),
        (
            wire({"name": "a", "args": ["x"]}),
            wire({"name": "a", "args": ["y", "z"]}),
            wire({"name": "a", "args": ["z", "y"]}),
        ),
    ],
    ids=[
        "no other writer did",
        "both did the same",
        "each added a finalizer",
        "each removed a finalizer",
        "the same arguments in another order",
    ],
)
def test_no_conflict(original: Any, modified: Any, current: Any) -> None:
    overwriting = strategic.three_way_diff(original, modified, current, POD)
    assert strategic.three_way_diff(original, modified, current, POD, overwrite=False) == overwriting


def test_a_precondition_sees_the_finished_patch() -> None:
    def keeps_its_kind(patch: dict[str, Any]) -> bool:
        return "kind" not in patch

    assert strategic.two_way_diff(IMAGE_X, IMAGE_Y, POD, [keeps_its_kind])
    with pytest.raises(PreconditionFailed):
        strategic.two_way_diff(IMAGE_X, {**IMAGE_X, "kind": "Job"}, POD, [keeps_its_kind])
    with pytest.raises(PreconditionFailed):
        strategic.three_way_diff({}, {"kind": "Job"}, IMAGE_X, POD, preconditions=[keeps_its_kind])
