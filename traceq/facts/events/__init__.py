"""Relations between rows of a trace: nesting, launches and device work, kernels, stream waits."""
