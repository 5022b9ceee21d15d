"""Questions that cover the screen until they are answered."""
