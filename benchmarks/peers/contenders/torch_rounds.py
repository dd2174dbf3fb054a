"""What the contenders in PyTorch share: models, rounds as loops over clients and steps, weights in both layouts.

Models and all records are on the device that $PEERS_DEVICE names; on a GPU products may be taken in TF32, as JAX does.
"""

import copy
import os

import numpy as np
import torch
import workloads
from torch import nn

DEVICE = os.environ.get("PEERS_DEVICE", "cpu")
torch.backends.cuda.matmul.allow_tf32 = True


def network(w, channels_first=False):
    """The workload's model, for records `(batch, *shape)` with channels last; `channels_first`: also in memory.

    Opacus needs that: 1.6.0 unfolds all images as if they lay so, and takes wrong gradients of convolutions else.
    """
    parts = [nn.Flatten()] if w.model in ("logistic", "mlp") else [ChannelsFirst(channels_first)]
    dense = False
    for layer in workloads.layers(w):
        if len(layer.shape) == 4:
            height, _, inner, outer = layer.shape
            parts.append(nn.Conv2d(inner, outer, height, padding=height // 2 if layer.padding == "SAME" else 0))
        else:
            parts += [] if dense else [nn.Flatten()]
            dense = True
            parts.append(nn.Linear(*layer.shape))
        parts += [nn.ReLU()] if layer.relu else []
        parts += [nn.MaxPool2d(2)] if layer.halve else []
    return nn.Sequential(*parts).to(DEVICE)


class ChannelsFirst(nn.Module):
    def __init__(self, in_memory):
        super().__init__()
        self.in_memory = in_memory

    def forward(self, x):
        x = x.permute(0, 3, 1, 2)
        return x.clone(memory_format=torch.contiguous_format) if self.in_memory else x


def tensors(w):
    """All records as float32 in [0, 1], and their labels."""
    return placed(*workloads.records(w), 255)


def placed(x, y, scale=1):
    """Records over `scale`, and labels, on the device."""
    return torch.from_numpy(x).to(DEVICE).float() / scale, torch.from_numpy(y).to(DEVICE).long()


def wait():
    """Until the device has done what it was given."""
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def averaged(w, model, step):
    """A round: each client of a cohort starts from the model, takes its steps, and the updates are averaged."""
    images, labels = tensors(w)
    generator = np.random.default_rng(0)

    def run():
        start = copy.deepcopy(model.state_dict())
        total = {key: torch.zeros_like(value) for key, value in start.items()}
        for client in generator.choice(w.clients, w.cohort, replace=False):
            model.load_state_dict(start)
            for _ in range(w.steps):
                rows = torch.from_numpy(generator.choice(w.records, w.batch, replace=False))
                step(images[client, rows], labels[client, rows])
            update = {key: value - start[key] for key, value in model.state_dict().items()}
            if w.private == "client":
                norm = torch.sqrt(sum((value**2).sum() for value in update.values()))
                update = {key: value * torch.clamp(w.clip_norm / norm, max=1.0) for key, value in update.items()}
            for key, value in update.items():
                total[key] += value
        if w.private == "client":
            for value in total.values():
                value += workloads.NOISE_MULTIPLIER * w.clip_norm * torch.randn_like(value)
        model.load_state_dict({key: start[key] + total[key] / w.cohort for key in start})
        wait()
        return 1

    return run


def learned(model):
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def put(w, model, weights):
    """Give a model the weights of `workloads.weights`."""
    with torch.no_grad():
        for layer, (kernel, bias) in zip(learned(model), weights, strict=True):
            layer.weight.copy_(torch.from_numpy(to_torch(w, np.asarray(kernel))))
            layer.bias.copy_(torch.from_numpy(np.asarray(bias)))


def side(w):
    """Height and width in front of the first dense layer of a CNN."""
    return round((workloads.layers(w)[2].shape[0] // workloads.layers(w)[1].shape[-1]) ** 0.5)


def is_first_dense(w, shape):
    return w.model in ("cnn", "pfl") and tuple(shape) == workloads.layers(w)[2].shape


def to_torch(w, kernel):
    """PyTorch's layout of a kernel: outputs first, and channels first in what a convolution hands to a dense layer."""
    if kernel.ndim == 4:
        return kernel.transpose(3, 2, 0, 1).copy()
    if is_first_dense(w, kernel.shape):
        kernel = kernel.reshape(side(w), side(w), 64, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
    return kernel.T.copy()


def from_torch(w, weight):
    """The way back, of a gradient."""
    if weight.ndim == 4:
        return weight.transpose(2, 3, 1, 0)
    kernel = weight.T
    if is_first_dense(w, kernel.shape):
        kernel = kernel.reshape(64, side(w), side(w), -1).transpose(1, 2, 0, 3).reshape(kernel.shape)
    return kernel


def layers_of(w, pairs):
    """Gradients of weights and biases, layer by layer, in the layout of `workloads`."""
    return [(from_torch(w, weight.cpu().numpy()), bias.cpu().numpy()) for weight, bias in pairs]
