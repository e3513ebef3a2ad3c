"""Runtime handlers and user namespaces of pods.

In: a pod and the node. A pod with `hostUsers: false` needs an allocated ID range (`runtimes/cri/user_ranges.py`) and a
handler that supports user namespaces. Kubelet counterparts: pkg/kubelet/runtimeclass and pkg/kubelet/userns.
"""

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod
from podkeeper.runtimes.cri.requests.node import NOTHING_NEW, Handler, IdRange, NodeFacts
from podkeeper.runtimes.cri.schema import cri


def runtime_handler_of(pod: Pod, node: NodeFacts) -> str:
    """Return the handler of a pod's runtime class. "" is the default handler. Raises NotConfigurable."""
    name = pod.spec.runtime_class_name or ""
    if name and name not in node.runtime_classes:
        raise NotConfigurable(f'runtimeclass.node.k8s.io "{name}" not found')
    return node.runtime_classes[name] if name else ""


def handler_features(pod: Pod, node: NodeFacts) -> Handler:
    """Return the features of a pod's handler, as the runtime reports them."""
    return node.handlers.get(runtime_handler_of(pod, node), NOTHING_NEW)


def has_own_users(pod: Pod) -> bool:
    return pod.spec.host_users is False


def users_of(pod: Pod, node: NodeFacts, users: IdRange | None) -> cri.UserNamespace:
    """Return the user namespace of a pod. `users` is its ID range. Raises NotConfigurable."""
    if not has_own_users(pod):
        return cri.UserNamespace(mode=cri.NODE)
    if not handler_features(pod, node).user_namespaces:
        handler = runtime_handler_of(pod, node)
        actor = f'RuntimeClass handler "{handler}"' if handler else "runtime"
        raise NotConfigurable(f"can't set `spec.hostUsers: false`, {actor} does not support user namespaces")
    if users is None:
        raise NotConfigurable("create user namespace: cannot find a range of users for the pod")
    mapping = cri.IDMapping(host_id=users.first, container_id=0, length=users.length)
    return cri.UserNamespace(mode=cri.POD, uids=[mapping], gids=[mapping])
