"""Weights on their way from node to node."""
