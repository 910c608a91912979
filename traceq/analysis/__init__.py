"""Analyses, one file per question: `summarize(trace)` on every rank, `merge(job, parts) -> Report` on their parts."""
