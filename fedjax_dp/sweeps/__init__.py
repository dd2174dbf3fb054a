"""Sweeps: many runs that differ in some fields, described in one file and run together."""
