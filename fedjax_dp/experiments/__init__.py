"""A run from its configuration to its folder: options, population, report, pictures, latency, bytes sent."""
