"""Benchmarks: ratios against a reference in the same run. docs/performance.md has commands and figures."""
