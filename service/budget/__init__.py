"""How many tokens a request may use: limits, the decision, what history gives way, what the cache holds."""
