"""`podkeeper demo`: a simulated node lives through an hour of pods in seconds.

    cast       the pods: what each is to be, and what its containers do with their lives
    story      what happens when: pods come and go, and trouble
    node       the stage: a whole agent in virtual time, on a fake runtime and an API in memory
    recorder   looks at the node every story minute: its table, and one pod's whole timeline
    play       plays a story on a node; drawing: shows what was recorded

Nothing here is faked about the engine: it is wired as in production. Only what it stands on is.
"""
