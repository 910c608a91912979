"""Rules about a trace, such as `dtoh in forward == 0`: text -> Rule -> RuleOutcome on every rank."""
