"""Steps, phases, blocking calls, and what every nanosecond of a step belongs to."""
