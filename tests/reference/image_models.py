"""ResNet-18 and VGG-16 for small images in plain PyTorch operations, without a look at src/nn; only the names and the
order of the parameters are agreed on. make_image_fixtures.py runs them.

ResNet-18 has a first convolution of 3 × 3 pixels and no pooling after it. VGG-16 has batch normalisation, and one dense
layer that reads the mean over the last pixels. `width` is the number of channels of the first convolution.
"""
import torch
import torch.nn.functional as F

EPSILON = 1e-5
VGG_STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))  # convolutions, and channels over the width


def convolution_parameters(name, number, out, in_, kernel):
    yield f"{name}conv{number}.weight", (out, in_, kernel, kernel)
    yield f"{name}bn{number}.weight", (out,)
    yield f"{name}bn{number}.bias", (out,)


def dense_parameters(classes, inputs):
    yield "fc.weight", (classes, inputs)
    yield "fc.bias", (classes,)


def resnet18_blocks(width):
    """Name, inputs, outputs and stride of each block."""
    inputs = width
    for stage in range(4):
        for block in range(2):
            outputs = width << stage
            yield f"layer{stage + 1}.{block}.", inputs, outputs, 2 if stage > 0 and block == 0 else 1
            inputs = outputs


def resnet18_parameters(channels, width, classes):
    yield from convolution_parameters("", 1, width, channels, 3)
    for name, inputs, outputs, stride in resnet18_blocks(width):
        yield from convolution_parameters(name, 1, outputs, inputs, 3)
        yield from convolution_parameters(name, 2, outputs, outputs, 3)
        if stride > 1:
            yield from convolution_parameters(name + "downsample.", "", outputs, inputs, 1)
    yield from dense_parameters(classes, 8 * width)


def vgg16_parameters(channels, width, classes):
    inputs, number = channels, 1
    for convolutions, factor in VGG_STAGES:
        for _ in range(convolutions):
            yield from convolution_parameters("features.", number, factor * width, inputs, 3)
            inputs, number = factor * width, number + 1
    yield from dense_parameters(classes, inputs)


class Norms:
    """Batch normalisation over groups of `samples` consecutive images. It keeps the means over the groups of their
    means and of their unbiased variances; with such `statistics` of an earlier pass it takes those instead."""

    def __init__(self, samples, statistics=None):
        self.samples, self.given, self.taken = samples, statistics, {}

    def __call__(self, p, name, x):
        weight, bias = p[name + ".weight"], p[name + ".bias"]
        if self.given:
            return F.batch_norm(x, *self.given[name], weight, bias, training=False, eps=EPSILON)
        groups = x.split(self.samples)
        means = torch.stack([group.detach().mean((0, 2, 3)) for group in groups])
        variances = torch.stack([group.detach().var((0, 2, 3), unbiased=True) for group in groups])
        self.taken[name] = means.mean(0), variances.mean(0)
        return torch.cat([F.batch_norm(group, None, None, weight, bias, training=True, eps=EPSILON)
                          for group in groups])


def convolution_norm(p, norms, name, number, x, stride=1):
    weight = p[f"{name}conv{number}.weight"]
    return norms(p, f"{name}bn{number}", F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2))


def dense_of_mean(p, x):
    return F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


def resnet18(p, norms, width, x):
    x = F.relu(convolution_norm(p, norms, "", 1, x))
    for name, _, _, stride in resnet18_blocks(width):
        inner = F.relu(convolution_norm(p, norms, name, 1, x, stride))
        inner = convolution_norm(p, norms, name, 2, inner)
        if stride > 1:
            x = convolution_norm(p, norms, name + "downsample.", "", x, stride)
        x = F.relu(inner + x)
    return dense_of_mean(p, x)


def vgg16(p, norms, width, x):
    number = 1
    for convolutions, _ in VGG_STAGES:
        for _ in range(convolutions):
            x = F.relu(convolution_norm(p, norms, "features.", number, x))
            number += 1
        if min(x.shape[2:]) > 1:
            x = F.max_pool2d(x, 2)
    return dense_of_mean(p, x)
