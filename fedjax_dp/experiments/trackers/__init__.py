"""Callbacks that write a run to experiment trackers; each imports its package when a run starts."""
