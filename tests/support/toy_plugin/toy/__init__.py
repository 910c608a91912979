"""A package that adds an analysis, a recipe and a renderer to traceq."""
