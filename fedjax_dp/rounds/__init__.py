"""Rounds of an algorithm: what one does, their loop, their records ahead of time, their checkpoints and what is
measured.
"""
