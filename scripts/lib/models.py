"""Shapes and operation counts of the networks of inputs/performance and inputs/bert_*.yaml."""

import collections

Model = collections.namedtuple("Model", "architecture layers hidden heads tokens positions vocabulary batch")

MODELS = {
    "bert_small": Model("bert", 4, 256, 4, 128, 512, 8192, 16),
    "bert_base": Model("bert", 12, 768, 12, 128, 512, 30522, 8),
    "bert_large": Model("bert", 24, 1024, 16, 128, 512, 30522, 4),
    "gpt_char": Model("gpt", 4, 128, 4, 64, 64, 65, 12),
    "gpt2": Model("gpt", 12, 768, 12, 64, 1024, 50257, 4),
}


def predicted_tokens(model):
    """Positions of the batch whose token the head predicts: 15 % of a BERT's, all of a GPT's."""
    return model.batch * (int(0.15 * model.tokens) if model.architecture == "bert" else model.tokens)


def step_flop(model):
    """Floating-point operations of the matrix products of a training step, whoever computes it.

    A multiply-add is two operations. The backward pass has two products for each one of the forward pass: d_input and
    d_weight. A layer with hidden size H has 12 H² weights (query, key, value, output, and two of 4 H). Attention has
    two products of B·T²·H multiply-adds, of which a causal model needs half. The head has V·H weights, BERT's H² more.
    Everything else (normalisation, GELU, softmax, dropout, optimiser) is left out, and so is what a program computes
    twice.
    """
    bert = model.architecture == "bert"
    rows, hidden = model.batch * model.tokens, model.hidden
    weights = rows * model.layers * 12 * hidden**2
    attention = model.layers * 2 * rows * model.tokens * hidden // (1 if bert else 2)
    head = predicted_tokens(model) * (model.vocabulary * hidden + (hidden**2 if bert else 0))
    return 3 * 2 * (weights + attention + head)


ResNet18 = collections.namedtuple("ResNet18", "width batch channels size classes")
RESNET18 = ResNet18(64, 32, 3, 32, 9)
VGG16_STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))  # convolutions, and channels over the width


def resnet18_blocks(width):
    """Inputs, outputs and stride of the blocks of a ResNet-18."""
    inputs = width
    for stage in range(4):
        for block in range(2):
            yield inputs, width << stage, 2 if stage > 0 and block == 0 else 1
            inputs = width << stage


def resnet18_step_flop(network):
    """As step_flop, of a ResNet-18 with a first convolution of 3 x 3 pixels and no pooling after it. There is no
    gradient at the images, so the first convolution has two products in place of three."""
    size, multiply_adds = network.size, 0
    for inputs, outputs, stride in resnet18_blocks(network.width):
        size //= stride
        columns = 9 * inputs + 9 * outputs + (inputs if stride > 1 else 0)
        multiply_adds += size**2 * outputs * columns
    first = network.size**2 * network.width * 9 * network.channels
    return 2 * network.batch * (3 * multiply_adds + 2 * first)
