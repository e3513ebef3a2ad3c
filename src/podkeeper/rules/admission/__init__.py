"""Admission: whether a pod may run here, and which pods to preempt for it."""
