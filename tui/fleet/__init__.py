"""The fleet: its map, and what can be done with it."""
