"""Profiled steps: profiler windows, line marks, and the forecast of a trace's size."""
