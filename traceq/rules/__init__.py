"""Rules about a trace, such as `dtoh in forward == 0`: text -> Rule -> Outcome on every rank."""
