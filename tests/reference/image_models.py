"""ResNet-18, VGG-16 and MLP-Mixer for small images in plain PyTorch operations, without a look at src/nn; only the
names and the order of the parameters are agreed on. make_image_fixtures.py runs them.

ResNet-18 has a first convolution of 3 × 3 pixels and no pooling after it. VGG-16 has batch normalisation, and one dense
layer that reads the mean over the last pixels. MLP-Mixer has four blocks on patches of 4 × 4 pixels, a GELU in its tanh
form and ε of 1e-6, as its authors' code (github.com/google-research/vision_transformer) has them. It lacks one bias of
that code, of the second layer over patches, because its gradient is 0. `width` is the number of channels of the first
convolution.
"""
import torch
import torch.nn.functional as F

EPSILON = 1e-5
LAYER_EPSILON, PATCH, BLOCKS = 1e-6, 4, 4  # of MLP-Mixer
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


def mixer_parameters(channels, width, classes, patches):
    def both(name, *weight):
        yield name + ".weight", weight
        yield name + ".bias", weight[:1]

    yield from both("stem.proj", width, channels, PATCH, PATCH)
    for block in range(BLOCKS):
        for part, mlp, size, hidden in ((1, "mlp_tokens", patches, width // 2), (2, "mlp_channels", width, 4 * width)):
            yield from both(f"blocks.{block}.norm{part}", width)
            yield from both(f"blocks.{block}.{mlp}.fc1", hidden, size)
            yield from list(both(f"blocks.{block}.{mlp}.fc2", size, hidden))[:part]
    yield from both("norm", width)
    yield from both("head", classes, width)


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


def mixer(p, _, width, x):
    """Without batch normalisations; x + tokens(norm(x)) over patches and x + channels(norm(x)) over channels."""

    def of(function, name, x, **options):
        return function(x, weight=p[name + ".weight"], bias=p.get(name + ".bias"), **options)

    def norm(name, x):
        return of(F.layer_norm, name, x, normalized_shape=(width,), eps=LAYER_EPSILON)

    def mlp(name, x):
        return of(F.linear, name + ".fc2", F.gelu(of(F.linear, name + ".fc1", x), approximate="tanh"))

    x = of(F.conv2d, "stem.proj", x, stride=PATCH).flatten(2).transpose(1, 2)  # (B, patches, width)
    for block in range(BLOCKS):
        name = f"blocks.{block}."
        x = x + mlp(name + "mlp_tokens", norm(name + "norm1", x).transpose(1, 2)).transpose(1, 2)
        x = x + mlp(name + "mlp_channels", norm(name + "norm2", x))
    return of(F.linear, "head", norm("norm", x).mean(1))
