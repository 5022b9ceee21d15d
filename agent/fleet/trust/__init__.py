"""Who may join: keys, tokens, and what unknown callers get."""
