"""Reproductions of papers' tables and figures: published, literal and correct numbers, with proved epsilons."""
