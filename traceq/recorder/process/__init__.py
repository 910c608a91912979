"""Processes of ranks: signals, environment, errors, liveness, run status, root cause."""
