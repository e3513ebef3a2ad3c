"""Runtime classes, and users of a pod's own: which handler makes its sandbox, and whose users its containers have.

A pod and the node come in. A pod that wants users of its own (`hostUsers: false`) gets a range of the node's, which
somebody has to have set aside for it (`runtimes/cri/user_ranges.py`), and only from a handler that says it can. The Go
ancestors are pkg/kubelet/runtimeclass and pkg/kubelet/userns.
"""

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod
from podkeeper.runtimes.cri.requests.node import NOTHING_NEW, Handler, IdRange, NodeFacts
from podkeeper.runtimes.cri.schema import cri


def runtime_handler_of(pod: Pod, node: NodeFacts) -> str:
    """The runtime's name for what a pod's runtime class means; "" is its usual handler. Raises NotConfigurable."""
    name = pod.spec.runtime_class_name or ""
    if name and name not in node.runtime_classes:
        raise NotConfigurable(f'runtimeclass.node.k8s.io "{name}" not found')
    return node.runtime_classes[name] if name else ""


def handler_features(pod: Pod, node: NodeFacts) -> Handler:
    """What the handler of a pod can do, as far as the runtime said."""
    return node.handlers.get(runtime_handler_of(pod, node), NOTHING_NEW)


def wants_own_users(pod: Pod) -> bool:
    """Whether a range of users has to be set aside for a pod."""
    return pod.spec.host_users is False


def users_of(pod: Pod, node: NodeFacts, users: IdRange | None) -> cri.UserNamespace:
    """Whose users a pod's containers have; `users` is the range that was set aside for it. Raises NotConfigurable."""
    if not wants_own_users(pod):
        return cri.UserNamespace(mode=cri.NODE)
    if not handler_features(pod, node).user_namespaces:
        handler = runtime_handler_of(pod, node)
        who = f'RuntimeClass handler "{handler}"' if handler else "runtime"
        raise NotConfigurable(f"can't set `spec.hostUsers: false`, {who} does not support user namespaces")
    if users is None:
        raise NotConfigurable("create user namespace: cannot find a range of users for the pod")
    mapping = cri.IDMapping(host_id=users.first, container_id=0, length=users.length)
    return cri.UserNamespace(mode=cri.POD, uids=[mapping], gids=[mapping])
