"""One file, one question: `analyze(run) -> Report`."""
