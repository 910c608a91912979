"""Training jobs that know nothing of their recording: injection, events of their loop, and where its steps begin."""
