"""Long runs: every step of every rank on disk, the onset of a slowdown, and when to trace it. Nothing needs torch."""
