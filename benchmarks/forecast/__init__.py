"""Rounds, sweeps and audits on accelerators that are not here: launches, cycles, memory and time, read off programs."""
