"""The parts an algorithm is made of, a slot each: cohorts, batches, clipping, noise, privacy of records and of clients,
corrections, local training, aggregation, transport, server.
"""
