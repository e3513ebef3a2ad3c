"""The agent's local API: HTTP over a unix socket.

places       default paths of the root and the socket (standard library only)
gate         between the sources and the agent: holds back stopped pods
board        the agent's pods as objects, tables and texts
printing     the columns of `kubectl get pods`
reasons      the reason of a pod's status, in one line
logs         container logs, including rotated files
streams      exec and attach
forwards     port forwarding
server       the HTTP server, with the paths of the kubelet and the objects of Kubernetes
client       the client of the command line (standard library only)
"""
