"""Profiled steps: profiler windows, line marks, the forecast of a trace's size."""
