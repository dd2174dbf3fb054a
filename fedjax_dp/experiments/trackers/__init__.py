"""Callbacks that tell experiment trackers of a run; each imports its package when a run starts."""
