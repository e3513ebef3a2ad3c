"""Benchmarks: ratios in one run against a named reference; commands and figures in docs/performance.md."""
