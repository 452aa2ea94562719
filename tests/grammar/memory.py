"""Rows about memory: views, copies, elements by index, writes, random and constant fills."""

from tests.grammar.production import table

SHAPES = table(
    {
        "m": """
            aten.t.default({m&})
            aten.permute.default({m&}, [1, 0])
            aten.slice.Tensor({h&}, 0, 2, 6)
            aten.slice.Tensor({h&}, 0, 0, 8, 2)
            aten.select.int({g&}, 0, 1)
            aten.squeeze.dims(aten.slice.Tensor({g&}, 0, 0, 1), [0])
            aten.select.int(aten.select.int({i&}, 0, 1), 0, 2)
            aten.select.int(aten.diagonal.default({i&}, 0, 2, 3), 0, 1)
            aten.as_strided.default({m&}, [4, 4], [1, 4])
            aten.alias.default({m&})
            aten.detach.default({m&})
            aten.view.default(aten.unsqueeze.default({m&}, 1), [4, 4])
            aten.reshape.default({q&}, [4, 4])
            aten.contiguous.default({m&})
            aten.clone.default({m})
            aten.clone.default({m}, memory_format=torch.contiguous_format)
            aten.cat.default([{o}, {m}])
            aten.stack.default([{v}, {v}, {v}, {v}], 1)
            aten.flip.default({m}, [0])
            aten.roll.default({m}, [1], [1])
            aten.tril.default({m})
            aten._unsafe_view.default(aten.alias_copy.default({q}), [4, 4])
            aten.slice_scatter.default({m}, {o}, 0, 4, 9)
            aten.slice_scatter.default({m}, {c}, 1, 2, 3)
            aten.select_scatter.default({m}, {v}, 1, 2)
            aten.select_scatter.default({m}, {v}, 0, 0)
            aten.diagonal_scatter.default({m}, {v})
            aten.slice_scatter.default({m}, \
                aten.select_scatter.default(aten.slice.Tensor({h}, 0, 2, 4), {v}, 0, 1), 0, 1, 3)
            aten.as_strided_scatter.default({m}, {v}, [4], [5])
            aten.expand_copy.default({v}, [4, 4])
        """,
        "e": """
            aten.expand.default({v&}, [4, 4])
            aten.expand.default({c&}, [4, 4])
            aten.expand.default({s&}, [4, 4])
            aten.t.default({e&})
            aten.as_strided.default({m&}, [4, 4], [3, 1])
        """,
        "v": """
            aten.select.int({m&}, 0, 1)
            aten.select.int({m&}, 1, 2)
            aten.diagonal.default({m&})
            aten.squeeze.dim({c&}, 1)
            aten.reshape.default({f&}, [4])
            aten.as_strided.default({m&}, [4], [4])
            aten.slice.Tensor(aten.as_strided.default({m&}, [8], [1]), 0, 0, 8, 2)
        """,
        "vvvv": "aten.unbind.int({m&}, 1)",
        "mm": """
            aten.split.Tensor({h&}, 4)
            aten.split_with_sizes.default({h&}, [4, 4])
            aten.chunk.default({h&}, 2)
            aten.unsafe_split.Tensor({h&}, 4)
            aten.unbind.int({g&})
        """,
        "c": """
            aten.unsqueeze.default({v&}, 1)
            aten.slice.Tensor({m&}, 1, 1, 2)
        """,
        "g": """
            aten.select.int({i&}, 1, 3)
            aten.transpose.int({g&}, 1, 2)
            aten.stack.default([{m}, {m}])
        """,
        "h": """
            aten.cat.default([{m}, {m}])
            aten.repeat.default({m}, [2, 1])
        """,
        "q": """
            aten.view.default({m&}, [2, 2, 2, 2])
            aten.permute.default({q&}, [2, 0, 3, 1])
        """,
        "f": """
            aten.slice.Tensor(aten.slice.Tensor({m&}, 0, 0, 4, 2), 1, 1, 3)
            aten.select.int(aten.select.int({q&}, 0, 1), 2, 0)
            aten.view.default({v&}, [2, 2])
        """,
        "o": "aten.slice.Tensor({m&}, 0, 4, 9)",
        "i": """
            aten.transpose.int({i&}, 2, 3)
            aten.clone.default({i}, memory_format=torch.channels_last)
        """,
        "s": """
            aten.select.int({v&}, 0, 3)
            aten.squeeze.default(aten.slice.Tensor({v&}, 0, 0, 1))
        """,
        "n": """
            aten.t.default({n&})
            aten.stack.default([{x}, {x}, {x}, {x}])
        """,
        "x": "aten.select.int({n&}, 1, 0)",
        "b": "aten.t.default({b&})",
        "d": "aten.t.default({d&})",
    }
)

INDEXING = table(
    {
        "m": """
            aten.embedding.default({m}, {x})
            aten.gather.default({m}, 1, {n})
            aten.index_select.default({m}, 0, {x})
            aten.index.Tensor({m}, [{x}])
            aten.index.Tensor({h}, [{x}])
            aten.index_put.default({m}, [{x}], {v}, True)
            aten.index_put_.default({m!}, [{x}], {v}, True)
            aten.index_put_.default({m!}, [{x}, {x}], {s}, False)
            aten.index_put_.default({m!}, [{b}], {s})
            aten.index_put_.default({m!}, [None, {x}], {c}, True)
            aten.embedding_dense_backward.default({m}, {x}, 4, -1, False)
            aten.masked_scatter_.default({m!}, {b}, {m})
            aten.scatter.value({m}, 1, {n}, 0.5)
            aten.scatter_.value({m!}, 0, {n}, -0.5)
            aten.scatter_.src({m!}, 1, aten.argsort.default({m}, 1), {m})
            aten.scatter_add.default({m}, 1, {n}, {m})
            aten.scatter_add_.default({m!}, 0, {n}, {m})
            aten.index_add_.default({m!}, 0, {x}, {m})
            aten.index_copy_.default({m!}, 0, aten.argsort.default({v}), {m})
            aten.index_fill_.int_Scalar({m!}, 1, {x}, 0.25)
        """,
        "v": """
            aten.take.default({m}, {x})
            aten.index.Tensor(aten.index.Tensor({m}, [None, {x}]), [{x}, {x}])
            aten.index.Tensor({m}, [{x}, {x}])
        """,
    }
)

IN_PLACE = table(
    {
        "": """
            aten._foreach_mul_.Scalar([{m!}, {v!}], 0.5)
            aten._foreach_add_.List([{m!}, {m!}], [{m}, {v}])
            aten._foreach_copy_.default([{m!}, {v!}], [{m}, {v}])
            aten._foreach_neg_.default([{m!}, {h!}, {v!}])
        """,
        "mn": "aten.sort.values({m}, 1, values={m!}, indices={n!})",
        "m": """
            aten.add_.Tensor({m!}, {m})
            aten.relu_.default({m!})
            aten.mul_.Scalar({m!}, 0.5)
            aten.add_.Tensor({m!}, {v})
            aten.add_.Tensor({m!}, {d})
            aten.add_.Scalar({m!}, 1.0)
            aten.sub_.Tensor({m!}, {m})
            aten.mul_.Tensor({m!}, aten.tanh.default({m}))
            aten.copy_.default({m!}, {m})
            aten.copy_.default({m!}, {v})
            aten.copy_.default({m!}, {d})
            aten.fill_.Scalar({m!}, 0.75)
            aten.fill_.Tensor({m!}, {s})
            aten.zero_.default({m!})
            aten.masked_fill_.Scalar({m!}, {b}, -0.5)
            aten.sigmoid_.default({m!})
            aten.clamp_.default({m!}, -1.0, 1.0)
            aten.addmm_.default({m!}, {m}, aten.tanh.default({m}))
            aten.lerp_.Scalar({m!}, {m}, 0.5)
            aten.tril_.default({m!})
            aten.t_.default(aten.alias.default({m&}))
            aten.add.out({m}, {m}, out={m!})
            aten.mm.out({m}, aten.tanh.default({m}), out={m!})
        """,
        "v": """
            aten.add_.Tensor({v!}, {v})
            aten.mul_.Scalar({v!}, -0.5)
            aten.copy_.default({v!}, {s})
            aten.cumsum_.default({v!}, 0)
        """,
        "s": "aten.add_.Tensor({s!}, {s})",
        "c": "aten.add_.Tensor({c!}, {c})",
        "f": "aten.mul_.Scalar({f!}, 0.5)",
        "g": "aten.add_.Tensor({g!}, {m})",
        "h": "aten.neg_.default({h!})",
        "q": "aten.add_.Scalar({q!}, 1.0)",
        "o": "aten.add_.Scalar({o!}, 1.0)",
        "i": """
            aten.relu_.default({i!})
            aten.add_.Tensor({i!}, {m})
        """,
        "d": """
            aten.add_.Tensor({d!}, {m})
            aten.mul_.Scalar({d!}, 0.5)
        """,
        "x": "aten.fill_.Scalar({x!}, 2)",
        "n": """
            aten.bitwise_xor_.Scalar({n!}, 1)
            aten.copy_.default({n!}, {b})
        """,
        "b": """
            aten.logical_not_.default({b!})
            aten.zero_.default({b!})
        """,
    }
)

RANDOM = table(
    {
        "m": """
            aten.rand_like.default({m})
            aten.randn_like.default({m})
            aten.bernoulli.default(aten.sigmoid.default({m}))
            aten.rand.default([4, 4], device=device)
            aten.uniform_.default({m!})
            aten.normal_.default({m!}, 0.0, 0.5)
            aten.bernoulli_.float({m!}, 0.5)
            aten.dropout.default({m}, 0.25, True)
            aten.normal.Tensor_float({m}, 0.5)
        """,
        "mb": "aten.native_dropout.default({m}, 0.5, True)",
        "v": "aten.randn.default([4], device=device)",
        "n": "aten.randint_like.default({n}, 4)",
        "x": """
            aten.randperm.default(4, device=device)
            aten.multinomial.default(aten.sigmoid.default({v}), 4, True)
        """,
    }
)

CONSTANTS = table(
    {
        "m": """
            aten.full.default([4, 4], 0.5, device=device)
            aten.zeros_like.default({m})
            aten.ones_like.default({m})
            aten.eye.default(4, device=device)
            aten.full_like.default({d}, 2, dtype=torch.float32)
            aten.fill_.Scalar(aten.empty_like.default({m}), 1.5)
            aten.copy_.default(aten.empty.memory_format([4, 4], device=device), {m})
            aten.new_zeros.default({v}, [4, 4])
        """,
        "v": """
            torch.tensor([0.5, -1.0, 2.0, 0.25], device=device)
            aten._to_copy.default(aten.arange.default(4, device=device), dtype=torch.float32)
            aten.linspace.default(-1.0, 1.0, 4, device=device)
        """,
        "s": """
            aten.scalar_tensor.default(0.5, device=device)
            torch.tensor(0.25, device=device)
        """,
    }
)
