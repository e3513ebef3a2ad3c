"""CRI requests: pure functions from the engine's configuration to CRI messages.

    SandboxConfig   + NodeFacts                  -> PodSandboxConfig
    ContainerConfig + NodeFacts + ContainerFiles -> ContainerConfig

No input or output: facts about machine and runtime come in as `NodeFacts`. The messages equal those of the kubelet, so
that each agent can adopt the other's pods. If this node cannot provide what a spec requires, `NotConfigurable` is
raised, with the kubelet's message where it has one.
"""
