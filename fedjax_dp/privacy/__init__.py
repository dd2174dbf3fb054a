"""What a run promises: what is released of each client, the noise for a budget, what papers claim of it."""
