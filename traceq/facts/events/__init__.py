"""Rows of a trace related to each other: nesting, launches and device work, kernels, stream waits."""
