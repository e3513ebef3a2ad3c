"""The simulation of `podkeeper demo`: an hour of a node in a few seconds.

    pods       the pods and the scripted behaviour of their containers
    story      the events: pods are created and deleted, faults happen
    node       an agent in virtual time, on a fake runtime and an in-memory API
    recorder   records the table of pods every minute, and the timeline of one pod
    play       runs a story on a node
    drawing    formats the recorded values

The engine is the same as in production. Only the runtime, the API and the clock are simulated.
"""
