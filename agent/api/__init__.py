"""The head's HTTP face: the OpenAI API, health, fleet and metrics."""
