"""The head, as the screen sees it: its HTTP API, and what it says of itself."""
