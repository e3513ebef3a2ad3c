"""Probes: `worker` is one probe's life, `flags` what the results mean for a status; the rest asks and judges."""
