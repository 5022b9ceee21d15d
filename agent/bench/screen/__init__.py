"""A stand-in for a head with a large fleet, to measure and test the screen with.

It is synthetic: nothing in it runs a model, and its PCs do not exist. It stands for hardware that is not there, and
what is measured with it is the screen alone. It speaks the head's HTTP API, in a process of its own.
"""
