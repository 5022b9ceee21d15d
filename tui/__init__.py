"""The terminal screens; they talk to the head over HTTP only."""
