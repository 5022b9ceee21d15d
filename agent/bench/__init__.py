"""Benchmarks: ratios within one run, both sides in turn, raw results as JSON with targets."""
