"""The planner: which cluster and which plan, for a deadline and a budget."""
