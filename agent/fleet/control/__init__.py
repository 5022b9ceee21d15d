"""Orders and reports between a head and its nodes."""
