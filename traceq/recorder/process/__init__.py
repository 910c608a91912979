"""The processes that ranks run in: world, environment variables, signals, progress, messages, child processes."""
