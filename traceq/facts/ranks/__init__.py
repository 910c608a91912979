"""Several ranks: matched collectives, clock offsets, arrival waits, desyncs, the job's critical path."""
