"""Containers through the Container Runtime Interface.

It works with containerd, CRI-O and other runtimes with CRI v1.
"""
