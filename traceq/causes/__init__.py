"""Counterfactuals: two recordings on one common graph, and what each change of it contributes to a step's delta."""
