"""The head's part: it keeps the nodes together, plans, and serves."""
