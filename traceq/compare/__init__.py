"""Compare two runs: align them, explain the difference, decide whether it matters."""
