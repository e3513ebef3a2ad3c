"""What a runtime is asked, word by word: pure functions from the engine's wishes to CRI messages.

    SandboxConfig   + NodeFacts                  -> PodSandboxConfig
    ContainerConfig + NodeFacts + ContainerFiles -> ContainerConfig

Nothing here asks the machine or the runtime; what is true of them comes in as `NodeFacts`. The messages are those the
reference kubelet sends, so that each finds the other's pods and goes on with them. What a spec asks for and this node
cannot give raises `NotConfigurable`, in the reference's words where it has some.
"""
