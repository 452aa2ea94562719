"""AmoebaNet-A for ImageNet at the size of mobile networks, with random weights.

Source: Real, Aggarwal, Huang, Le, "Regularized Evolution for Image Classifier Architecture Search",
AAAI 2019: figure 5 (the cells), section Methods Details (N and F); arXiv:1802.01548 has the mobile
size.
The states that a cell concatenates are those of the authors' release, github.com/tensorflow/tpu,
some of which the cell has used as well: only with them do the sizes match the paper's.
"""

from functools import partial

from bench.models.cells import (
    NEWER,
    OLDER,
    Block,
    CellNetwork,
    CellTable,
    convolution_stem,
    relu_head,
    three_stacks,
)
from bench.models.model import Model, cifar10_form, image_form

NORMAL = CellTable(
    stride=1,
    blocks=(
        Block(NEWER, "avg_3x3", NEWER, "max_3x3"),
        Block(OLDER, "sep_3x3", OLDER, "identity"),
        Block(NEWER, "identity", OLDER, "avg_3x3"),
        Block(NEWER, "sep_3x3", 2, "sep_5x5"),
        Block(5, "avg_3x3", NEWER, "sep_3x3"),
    ),
    concatenated=(OLDER, 3, 4, 6),
)

REDUCTION = CellTable(
    stride=2,
    blocks=(
        Block(OLDER, "sep_3x3", NEWER, "avg_3x3"),
        Block(NEWER, "max_3x3", 2, "sep_7x7"),
        Block(OLDER, "max_3x3", NEWER, "max_3x3"),
        Block(4, "sep_3x3", NEWER, "1x7_7x1"),
        Block(OLDER, "avg_3x3", NEWER, "sep_7x7"),
    ),
    concatenated=(2, 3, 4, 5, 6),
)


def amoebanet_a(repeats: int = 4, channels: int = 50, num_classes: int = 1000) -> CellNetwork:
    """AmoebaNet-A (N, F): (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 32.

    Args:
        repeats: N, the normal cells in a stack.
        channels: F, the filters of the convolutions in the first stack.
        num_classes: The classes.
    """
    plan = three_stacks(NORMAL, REDUCTION, repeats, channels)
    return CellNetwork(convolution_stem(32), plan, relu_head(num_classes))


MODELS: tuple[Model, ...] = (
    Model(
        name="amoebanet_a",
        title="AmoebaNet-A (N=4, F=50)",
        source="Real, Aggarwal, Huang, Le, Regularized Evolution for Image Classifier "
        "Architecture Search, AAAI 2019",
        n_parameters=5_086_930,  # The paper rounds it to 5.1 million.
        inference=image_form("", amoebanet_a, 224),
        training=(cifar10_form(partial(amoebanet_a, num_classes=10), 32),),
    ),
)
