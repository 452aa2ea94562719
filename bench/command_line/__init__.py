"""What the commands share: options, what is shown on a terminal, and results kept as JSON."""
