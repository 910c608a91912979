"""Kineto Chrome traces to columns: the only place that knows Kineto's keys."""
