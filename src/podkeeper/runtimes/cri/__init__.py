"""Containers through the Container Runtime Interface: containerd, CRI-O, or whatever speaks CRI v1."""
