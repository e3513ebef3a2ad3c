"""CRI requests: pure functions from the engine's configuration to CRI messages.

    SandboxConfig   + NodeFacts                  -> PodSandboxConfig
    ContainerConfig + NodeFacts + ContainerFiles -> ContainerConfig

No I/O: `NodeFacts` has the facts about the machine and the runtime. The messages equal those of the kubelet, so
that each agent can adopt the other's pods. If this node does not support a field of the spec, the functions raise
`NotConfigurable`, with the kubelet's message if it has one.
"""
