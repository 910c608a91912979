"""One file, one experiment, on the public recorder API; installed as `traceq.recipes`."""
