"""The agent's local API: what runs on this machine, asked and told over a unix socket.

places       where an agent keeps its things, and where its socket is (no imports of weight)
gate         between the sources and the agent: holds pods back that a person stopped
board        what the agent knows of its pods, as objects, tables and words
printing     the columns of `kubectl get pods`, and why a pod is as it is
logs         a container's log, from its file, followed over rotation
streams      talking with a process in a container: exec and attach
server       all of it as HTTP over the socket; paths and objects are the kubelet's and Kubernetes' own
client       who asks: standard library only, so that a command answers at once
"""
