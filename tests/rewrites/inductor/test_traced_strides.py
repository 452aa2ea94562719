"""With Inductor's kernels, values have the strides that they were traced with."""

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.rewrites.inductor.inductor_kernels import with_inductor_kernels
from tests.support.inference_graphs import inference_graph


def test_outputs_have_the_strides_that_were_traced() -> None:
    graph = inference_graph(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5))
    made = with_inductor_kernels(graph.gm)
    before, after = (gm.graph.output_node().args[0] for gm in (graph.gm, made))
    for one, other in zip(before, after, strict=True):  # type: ignore[arg-type]
        assert one.meta["val"].stride() == other.meta["val"].stride()


def test_strides_are_the_traced_ones_where_inductors_operators_make_others() -> None:
    """As after a group normalization in PyTorch 2.14, whose decomposition keeps those of images."""

    def outputs(x: Tensor) -> tuple[Tensor, ...]:
        return x.relu(), x.sin().view(2, -1)

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    gm = make_fx(outputs, tracing_mode="fake")(x.contiguous())
    (given,) = gm.graph.find_nodes(op="placeholder")
    given.meta["val"] = given.meta["val"].to(memory_format=torch.channels_last)
    relu, sine = with_inductor_kernels(gm, None)(x)
    assert relu.is_contiguous()
    assert torch.equal(relu, x.relu())
    torch.testing.assert_close(sine, x.sin().reshape(2, -1))
