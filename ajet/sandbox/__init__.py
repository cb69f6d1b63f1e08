"""A sandbox for programs: those that a model wrote, and whole ones that a model steers."""
