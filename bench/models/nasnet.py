"""NASNet-A for ImageNet, with random weights: `nasnet_a_mobile` and `nasnet_a_large`.

Source: Zoph, Vasudevan, Shlens, Le, "Learning Transferable Architectures for Scalable Image
Recognition", CVPR 2018: figure 4 (the cells), tables 2 and 3 (the sizes).
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
        Block(NEWER, "sep_5x5", OLDER, "sep_3x3"),
        Block(OLDER, "sep_5x5", OLDER, "sep_3x3"),
        Block(NEWER, "avg_3x3", OLDER, "identity"),
        Block(OLDER, "avg_3x3", OLDER, "avg_3x3"),
        Block(NEWER, "sep_3x3", NEWER, "identity"),
    ),
    concatenated=(OLDER, 2, 3, 4, 5, 6),
)

REDUCTION = CellTable(
    stride=2,
    blocks=(
        Block(NEWER, "sep_5x5", OLDER, "sep_7x7"),
        Block(NEWER, "max_3x3", OLDER, "sep_7x7"),
        Block(NEWER, "avg_3x3", OLDER, "sep_5x5"),
        Block(2, "avg_3x3", 3, "identity"),
        Block(2, "sep_3x3", NEWER, "max_3x3"),
    ),
    concatenated=(3, 4, 5, 6),
)


def _nasnet_a(
    repeats: int, penultimate: int, stem_channels: int, skip: bool, num_classes: int
) -> CellNetwork:
    """NASNet-A (N @ P): (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 32.

    Args:
        repeats: N, the normal cells in a stack.
        penultimate: P, the channels before the classifier: a multiple of 24 * 4.
        stem_channels: The filters of the first convolution.
        skip: `keeps_older` of the reduction cells between stacks: as released, for 6 @ 4032 only.
        num_classes: The classes.
    """
    # The last stack is 4 times as wide as the first; a normal cell concatenates 6 states.
    plan = three_stacks(NORMAL, REDUCTION, repeats, penultimate // 24, skip=skip)
    return CellNetwork(convolution_stem(stem_channels), plan, relu_head(num_classes))


def nasnet_a_mobile(num_classes: int = 1000) -> CellNetwork:
    """NASNet-A (4 @ 1056), 5.3 million parameters, for inputs (batch, 3, 224, 224)."""
    return _nasnet_a(4, 1056, stem_channels=32, skip=False, num_classes=num_classes)


def nasnet_a_large(num_classes: int = 1000) -> CellNetwork:
    """NASNet-A (6 @ 4032), 88.8 million parameters, for inputs (batch, 3, 331, 331)."""
    return _nasnet_a(6, 4032, stem_channels=96, skip=True, num_classes=num_classes)


_SOURCE = (
    "Zoph, Vasudevan, Shlens, Le, Learning Transferable Architectures for Scalable Image "
    "Recognition, CVPR 2018"
)

MODELS: tuple[Model, ...] = (
    Model(
        name="nasnet_a_mobile",
        title="NASNet-A mobile",
        source=_SOURCE,
        n_parameters=5_289_978,
        inference=image_form("", nasnet_a_mobile, 224),
        training=(cifar10_form(partial(nasnet_a_mobile, 10), 32),),
    ),
    Model(
        name="nasnet_a_large",
        title="NASNet-A large",
        source=_SOURCE,
        n_parameters=88_753_150,
        inference=image_form("", nasnet_a_large, 331),
    ),
)
