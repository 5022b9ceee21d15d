"""What `edge-agent doctor` looks at: one topic a file, each of a part that gathers facts and a pure one that judges."""
