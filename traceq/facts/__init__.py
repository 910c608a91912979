"""Facts derived from a trace, each computed once: events, timeline, stalls, communication, ranks."""
