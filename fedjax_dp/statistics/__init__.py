"""Tests of laws on numbers: each assertion says how often it is mistaken, either way. NumPy and SciPy alone."""
