"""Auditing: attacks on thousands of simulated runs prove lower bounds on epsilon."""
