#!/usr/bin/env python3
"""Writes the fixtures of tests/unit/nn_images_parity_test.cpp: narrow ResNet-18, VGG-16 and MLP-Mixer as PyTorch
computes them.

    pip install torch h5py
    python3 tests/reference/make_image_fixtures.py

image_models.py has the networks. Parameters and images are single precision numbers; PyTorch computes with them in
double precision, so that the test measures the error of our single precision alone.

Each file holds
    shape              images B, height H, width W, channels C, channels of the first convolution, classes, samples of a
                       group of the norms
    parameters/NAME    convolutions (out, k * k * in) with the columns (ky, kx, channel), dense weights (out, in)
    pixels             (B, H, W, C)
    classes            (B)
    loss               mean cross entropy with the statistics of each group
    gradients/NAME     its gradient
    population_loss    mean cross entropy with the means of the groups' statistics, as running averages have them
and, as an attribute, the version of PyTorch that made it.
"""
import pathlib

import h5py
import image_models
import numpy as np
import torch
import torch.nn.functional as F

import models

BATCH, HEIGHT, WIDTH, CHANNELS, OUTPUTS, CLASSES, SAMPLES = 16, 16, 20, 3, 2, 5, 8
MIXER_OUTPUTS = 6  # a layer normalisation of two channels would give 1 and -1


def initial_parameters(table):
    """Far from zero everywhere, so that no part of a gradient is too small to be seen."""
    parameters = {}
    for name, shape in table:
        inputs = np.prod(shape[1:]) if len(shape) > 1 else 25
        values = torch.randn(shape) / inputs**0.5
        if ("bn" in name or "norm" in name) and name.endswith("weight"):
            values += 1
        parameters[name] = values.double().requires_grad_()
    return parameters


def rows(values):
    """A convolution's weight as a matrix with the columns (ky, kx, channel); other parameters as they are."""
    values = values.detach().float()
    return values.permute(0, 2, 3, 1).flatten(1) if values.dim() == 4 else values


def write(name, network, table, width=OUTPUTS):
    parameters = initial_parameters(table)
    pixels = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH).double()
    classes = torch.randint(CLASSES, (BATCH,))
    norms = image_models.Norms(SAMPLES)
    loss = F.cross_entropy(network(parameters, norms, width, pixels), classes)
    in_use = image_models.Norms(SAMPLES, norms.taken)
    population_loss = F.cross_entropy(network(parameters, in_use, width, pixels), classes)

    with h5py.File(pathlib.Path(__file__).parent / "fixtures" / f"{name}.h5", "w") as file:
        file.attrs["pytorch"] = np.bytes_(torch.__version__)

        def store(name, values):
            file.create_dataset(name, data=np.asarray(values), track_times=False)

        store("shape", np.int32([BATCH, HEIGHT, WIDTH, CHANNELS, width, CLASSES, SAMPLES]))
        for name, values in parameters.items():
            store("parameters/" + name, rows(values))
        for name, values in models.gradients(parameters, loss).items():
            store("gradients/" + name, rows(values))
        store("pixels", pixels.permute(0, 2, 3, 1).float())
        store("classes", classes.int())
        store("loss", [loss.item()])
        store("population_loss", [population_loss.item()])


if __name__ == "__main__":
    torch.manual_seed(1)
    write("resnet18", image_models.resnet18, image_models.resnet18_parameters(CHANNELS, OUTPUTS, CLASSES))
    write("vgg16", image_models.vgg16, image_models.vgg16_parameters(CHANNELS, OUTPUTS, CLASSES))
    write("mixer", image_models.mixer,
          image_models.mixer_parameters(CHANNELS, MIXER_OUTPUTS, CLASSES, HEIGHT * WIDTH // image_models.PATCH**2),
          MIXER_OUTPUTS)
