"""A PC's part in a fleet."""
