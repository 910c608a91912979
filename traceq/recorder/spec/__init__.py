"""What is recorded: recipes, their parameters and phases, the plan and the schedule."""
