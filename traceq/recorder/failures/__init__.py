"""How recordings fail: errors and exits of ranks, the root cause, hangs, out of memory, the status of a run."""
