"""Pod status: compute, publish and revise it.

`pod` computes it, `publish` decides what to send to the API, `revise` changes parts of it.
"""
