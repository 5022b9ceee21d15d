"""Guessing how texts go on, and how far to trust it."""
