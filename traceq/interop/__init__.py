"""Objects of other packages, filled from what traceq has read."""
