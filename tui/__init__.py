"""Chat and fleet on one screen of a terminal. Talks to the head over HTTP only."""
