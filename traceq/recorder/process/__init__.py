"""The processes that ranks run in: world, environment variables, signals, progress, errors and their root cause."""
