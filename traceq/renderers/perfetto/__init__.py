"""Render a run, or a pair of runs, for the Perfetto UI: events and derived facts, in Perfetto's own format.

The UI drops overlapping slices and nanoseconds of Chrome's JSON; TrackEvent packets lose nothing.
"""
