"""What the agent does to its own machine, and what it learns from it."""
