#!/usr/bin/env python3
"""Times training steps of ResNet-18 or VGG-16 in PyTorch, as the peer of `onebit train`; docs/results/performance.md.

ResNet-18 is that of inputs/performance/resnet18.yaml: images of 32 x 32 pixels (--pixels), a first convolution of 3 x 3
pixels and no pooling after it. VGG-16 has batch normalisation and one dense layer. It takes OMP_NUM_THREADS threads.
Adam is fused where this PyTorch has it. bf16 is autocast, the parameters stay in float32. `compile` compiles the whole
network. Both memory formats of PyTorch are timed, NCHW and NHWC (`channels_last`), and the faster one counts. Prints
each step's milliseconds and the median of the faster format, the first steps (--warm-up) left out.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from step_time import adam

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib.models import RESNET18, VGG16_STAGES, resnet18_blocks


def norm_of(inputs, outputs, kernel, stride):
    return torch.nn.Sequential(torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
                               torch.nn.BatchNorm2d(outputs))


class Block(torch.nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = norm_of(inputs, outputs, 3, stride), norm_of(outputs, outputs, 3, 1)
        self.shortcut = norm_of(inputs, outputs, 1, stride) if stride > 1 else torch.nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x), inplace=True)) + self.shortcut(x), inplace=True)


class ResNet18(torch.nn.Module):
    def __init__(self):
        super().__init__()
        shape = RESNET18
        self.first = norm_of(shape.channels, shape.width, 3, 1)
        self.blocks = torch.nn.Sequential(*(Block(*of) for of in resnet18_blocks(shape.width)))
        self.head = torch.nn.Linear(8 * shape.width, shape.classes)

    def forward(self, x, classes):
        x = self.blocks(F.relu(self.first(x), inplace=True))
        return F.cross_entropy(self.head(x.mean((2, 3))), classes)


class Vgg16(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers, inputs = [], RESNET18.channels
        for convolutions, factor in VGG16_STAGES:
            for place in range(convolutions):
                pooling = [torch.nn.MaxPool2d(2)] if place == convolutions - 1 else []
                layers += [norm_of(inputs, factor * RESNET18.width, 3, 1), torch.nn.ReLU(inplace=True), *pooling]
                inputs = factor * RESNET18.width
        self.features = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(inputs, RESNET18.classes)

    def forward(self, x, classes):
        return F.cross_entropy(self.head(self.features(x).mean((2, 3))), classes)


NETWORKS = {"resnet18": ResNet18, "vgg16": Vgg16}


def times_of(arguments, memory_format):
    """Milliseconds of each step."""
    torch.manual_seed(1)
    model = NETWORKS[arguments.network]().to(memory_format=memory_format)
    optimizer = adam(model.parameters())
    images = torch.randn(arguments.batch, RESNET18.channels, arguments.pixels, arguments.pixels)
    images = images.to(memory_format=memory_format)
    classes = torch.randint(RESNET18.classes, (arguments.batch,))
    if arguments.mode == "compile":
        model.compile()
    times = []
    for _ in range(arguments.warm_up + arguments.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = model(images, classes)
        loss.backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[arguments.warm_up:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="resnet18")
    parser.add_argument("--mode", choices=("eager", "compile"), default="eager")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--pixels", type=int, default=RESNET18.size, help="on a side; default: %(default)s")
    parser.add_argument("--batch", type=int, default=RESNET18.batch, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.set_flush_denormal(True)
    medians = {}
    for name, memory_format in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        times = times_of(arguments, memory_format)
        medians[name] = statistics.median(times)
        print(name, " ".join(f"{t:.1f}" for t in times))
    fastest = min(medians, key=medians.get)
    print(f"torch {torch.__version__}, {arguments.network}, {arguments.mode}, {arguments.precision}, {fastest}, "
          f"{torch.get_num_threads()} threads, median {medians[fastest]:.1f} ms")


if __name__ == "__main__":
    main()
