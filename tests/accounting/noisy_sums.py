"""Noisy sums of the samplings that most tests take."""

from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, Poisson, WithoutReplacement

ADD_REMOVE, REPLACE_ONE, ZERO_OUT = Adjacency


def unsampled(noise, count=1, adjacency=ADD_REMOVE):
    return GaussianSteps(noise, FullBatch(), adjacency, count)


def poisson(noise, rate, count=1, adjacency=ADD_REMOVE):
    return GaussianSteps(noise, Poisson(rate), adjacency, count)


def fixed_size(noise, batch, records, count):
    return GaussianSteps(noise, WithoutReplacement(batch, records), REPLACE_ONE, count)
