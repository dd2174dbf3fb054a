"""PyTorch's torch.func: one call computes all clients, vmap over clients of vmap over records."""

import numpy as np
import torch
import workloads
from contenders.torch_rounds import layers_of, network, placed, put, tensors, wait
from torch.func import functional_call, grad, vmap
from torch.nn import functional


def make(w):
    if w.private != "record":
        raise SystemExit("for record-level privacy only")
    model = network(w)
    images, labels = tensors(w)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    generator = np.random.default_rng(0)

    def loss(params, x, y):
        return functional.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    def clipped_mean(params, x, y):
        per_record = vmap(grad(loss), (None, 0, 0))(params, x, y)
        squares = sum(value.flatten(1).square().sum(1) for value in per_record.values())
        factors = torch.clamp(w.clip_norm / squares.sqrt(), max=1.0)
        return {name: torch.tensordot(factors, value, 1) / w.batch for name, value in per_record.items()}

    of_clients = vmap(clipped_mean)
    scale = workloads.NOISE_MULTIPLIER * w.clip_norm / w.batch

    def run():
        nonlocal start
        clients = torch.from_numpy(generator.choice(w.clients, w.cohort, replace=False))
        params = {name: value.expand(w.cohort, *value.shape).clone() for name, value in start.items()}
        for _ in range(w.steps):
            rows = np.stack([generator.choice(w.records, w.batch, replace=False) for _ in range(w.cohort)])
            x, y = images[clients[:, None], rows], labels[clients[:, None], rows]
            for name, value in of_clients(params, x, y).items():
                params[name] -= w.rate * (value + scale * torch.randn_like(value))
        start = {name: value.mean(0) for name, value in params.items()}
        wait()
        return 1

    def gradient(weights, x, y):
        other = network(w)
        put(w, other, weights)
        params = {name: value.detach() for name, value in other.named_parameters()}
        found = list(clipped_mean(params, *placed(x, y)).values())
        return layers_of(w, list(zip(found[::2], found[1::2], strict=True)))

    return run, gradient
