"""Traces that differ by one known change: every kind of change in every real trace that it suits.

A and B of a case are the same recorded trace, replayed by the same queue simulator; B holds the change. The simulator
(`simulate`) and its smaller edits (`gen`) are not part of this repository: a folder of them is given.
"""
