"""The chat tab."""
