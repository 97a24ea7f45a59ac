"""What the run says of itself: one table of metrics, and the sinks that show it."""
