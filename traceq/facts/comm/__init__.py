"""Collectives of one rank: calls, kernels, bytes, what each is for, and the parallelism they show."""
