"""The agent's local API: HTTP over a unix socket.

paths         default paths of the root and the socket (standard library only)
stop_filter   between the sources and the agent: removes stopped pods
pod_queries   the agent's pods as objects, tables and texts
pod_table     the columns of `kubectl get pods`
reasons       the reason of a pod's status, in one line
logs          container logs
log_follow    a log and its rotated files as one
streams       exec and attach
forwards      port forwarding
channels      streams over a WebSocket
server        the HTTP server, with the paths of the kubelet and the objects of Kubernetes
client        the client of the command line (standard library only)
"""
