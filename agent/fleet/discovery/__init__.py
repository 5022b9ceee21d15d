"""Agents on a network find each other."""
