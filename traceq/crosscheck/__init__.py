"""The same quantities of one trace from traceq, HTA and Perfetto's engine, and why they differ where they do."""
