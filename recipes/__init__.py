"""Recipes: one experiment per file, on the public recorder API; installed as `traceq.recipes`."""
