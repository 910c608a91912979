"""Toggles: things of a running job that can be changed between two of its steps."""
