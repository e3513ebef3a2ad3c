"""A pod's status: `pod` computes it, `publish` decides what the API is told, `revise` changes parts of it."""
