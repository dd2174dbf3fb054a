"""Where rounds run: devices that share a cohort, processes that share a run, tables on the host."""
