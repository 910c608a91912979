"""Specification of a recording: recipes, parameters, phases, the plan and the schedule."""
