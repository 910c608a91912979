"""One file, one question: `summarize(trace)` on every rank, `merge(job, parts) -> Report` on what the ranks left."""
