"""Unprofiled steps: stopwatch, journal of step times, clocks, sequential stopping."""
