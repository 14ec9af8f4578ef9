"""Text for people and machines: pure functions of verdicts."""
