"""Rows that compute. Indices stay within 0 to 3, and most numbers finite: NaN hides bugs."""

from tests.grammar.production import table

POINTWISE = table(
    {
        "m": """
            aten.relu.default({m})
            aten.neg.default({m})
            aten.add.Tensor({m}, {m})
            aten.mul.Tensor({m}, aten.tanh.default({m}))
            aten.sin.default({m})
            aten.cos.default({m})
            aten.abs.default({m})
            aten.sigmoid.default({m})
            aten.tanh.default({m})
            aten.erf.default({m})
            aten.exp.default(aten.clamp.default({m}, -3.0, 3.0))
            aten.sqrt.default(aten.abs.default({m}))
            aten.rsqrt.default(aten.add.Scalar(aten.abs.default({m}), 1.0))
            aten.log.default(aten.add.Scalar(aten.abs.default({m}), 1.0))
            aten.log1p.default(aten.abs.default({m}))
            aten.reciprocal.default(aten.add.Scalar(aten.abs.default({m}), 1.0))
            aten.gelu.default({m})
            aten.silu.default({m})
            aten.leaky_relu.default({m}, 0.1)
            aten.hardtanh.default({m})
            aten.elu.default({m})
            aten.floor.default({m})
            aten.sign.default({m})
            aten.sub.Tensor({m}, {m}, alpha=2)
            aten.add.Tensor({m}, {v})
            aten.add.Tensor({m}, {s})
            aten.add.Scalar({m}, 0.5)
            aten.rsub.Scalar({m}, 1.0)
            aten.mul.Scalar({m}, 0.5)
            aten.mul.Tensor({c}, aten.tanh.default({m}))
            aten.div.Tensor({m}, aten.add.Scalar(aten.abs.default({m}), 1.0))
            aten.pow.Tensor_Scalar(aten.clamp.default({m}, -3.0, 3.0), 2)
            aten.maximum.default({m}, {m})
            aten.minimum.default({m}, {m})
            aten.atan2.default({m}, {m})
            aten.fmod.Scalar({m}, 1.5)
            aten.lerp.Scalar({m}, {m}, 0.25)
            aten.addcmul.default({m}, {m}, aten.tanh.default({m}), value=0.5)
            aten.where.self({b}, {m}, {m})
            aten.masked_fill.Scalar({m}, {b}, 0.25)
            aten._to_copy.default({d}, dtype=torch.float32)
            aten._to_copy.default({b}, dtype=torch.float32)
            aten._to_copy.default({n}, dtype=torch.float32)
            aten.to.dtype(aten.to.dtype({m}, torch.bfloat16), torch.float32)
            aten.abs.default({z})
            aten.threshold_backward.default({m}, {m}, 0.0)
            aten.tanh_backward.default({m}, aten.tanh.default({m}))
            aten.gelu.default({m}, approximate="tanh")
            aten.div.Tensor_mode({m}, \
                aten.cosh.default(aten.tanh.default({m})), rounding_mode="floor")
            aten.nan_to_num.default({m}, 0.5, float("inf"), float("-inf"))
            aten.where.ScalarOther({b}, {m}, 0.5)
            torch.ops.prims.convert_element_type.default({d}, torch.float32)
            aten.real.default({z&})
            aten.imag.default({z&})
        """,
        "d": """
            aten._to_copy.default({m}, dtype=torch.float64)
            aten.mul.Tensor({d}, aten.tanh.default({m}))
            aten.sub.Tensor({d}, {n})
        """,
        "z": """
            aten.complex.default({m}, {m})
            aten.mul.Scalar({z}, 0.5j)
            aten._conj.default({z&})
            aten.t.default({z&})
            aten.add_.Tensor({z!}, {m})
        """,
        "b": """
            aten.gt.Scalar({m}, 0.0)
            aten.lt.Tensor({m}, {m})
            aten.eq.Tensor({n}, {n})
            aten.isfinite.default({m})
            aten.logical_not.default({b})
            aten.bitwise_and.Tensor({b}, {b})
            aten.logical_or_.default({b!}, {b})
        """,
        "n": """
            aten.remainder.Scalar(aten.add.Tensor({n}, {x}), 4)
            aten._to_copy.default({b}, dtype=torch.int64)
            aten.clamp.default(aten._to_copy.default({m}, dtype=torch.int64), 0, 3)
        """,
        "x": """
            aten.bitwise_xor.Scalar({x}, 1)
            aten.arange.default(4, device=device)
        """,
        "v": """
            aten.cos.default({v})
            aten.mul.Tensor({s}, aten.tanh.default({v}))
        """,
        "i": """
            aten.relu.default({i})
            aten.add.Tensor({i}, {m})
            aten.mul.Tensor({i}, aten.tanh.default({i}))
        """,
        "j": "aten.sigmoid.default({j})",
        "q": "aten.add.Tensor({q}, {f})",
        "o": "aten.relu.default({o})",
        "f": "aten.tanh.default({f})",
        "s": "aten.sin.default({s})",
        "c": "aten.sin.default({c})",
        "mm": """
            aten._foreach_add.List([{m}, {m}], [{m}, {m}])
            aten._foreach_sin.default([{m}, {m}])
        """,
    }
)

REDUCTIONS = table(
    {
        "s": """
            aten.sum.default({m})
            aten.mean.default({m})
            aten.max.default({i})
            aten.sum.default({o})
            aten.dot.default({v}, aten.tanh.default({v}))
        """,
        "v": """
            aten.sum.dim_IntList({m}, [1])
            aten.mean.dim({m}, [0])
            aten.amax.default({m}, [1])
            aten.amin.default({m}, [0])
            aten.logsumexp.default({m}, [1])
            aten.prod.dim_int(aten.tanh.default({m}), 0)
            aten.linalg_vector_norm.default(aten.tanh.default({m}), 2, [1])
            aten.sum.dim_IntList({i}, [0, 2, 3])
            aten.sum.dim_IntList({o}, [0])
        """,
        "c": "aten.mean.dim({m}, [1], True)",
        "m": """
            aten.cumsum.default({m}, 1)
            aten._softmax.default({m}, 1, False)
            aten._log_softmax.default({m}, 0, False)
            aten._softmax_backward_data.default({m}, aten.tanh.default({m}), 1, torch.float32)
            aten.sum.dim_IntList({g}, [0])
            aten.mean.dim({i}, [0, 1])
        """,
        "x": """
            aten.argmax.default({m}, 1)
            aten.argmin.default({m}, 0)
            aten.argsort.default({v})
        """,
        "vv": "aten.var_mean.correction(aten.tanh.default({m}), [0], correction=1)",
        "vx": "aten.max.dim({m}, 1)",
        "mn": """
            aten.topk.default({m}, 4, 1)
            aten.sort.default({m}, 0)
            aten.cummax.default({m}, 1)
        """,
        "n": "aten.remainder.Scalar(aten.cumsum.default({b}, 1), 4)",
    }
)

MATMUL = table(
    {
        "m": """
            aten.mm.default({m}, aten.tanh.default({m}))
            aten.addmm.default({v}, {m}, aten.tanh.default({m}))
            aten.addmm.default({m}, aten.tanh.default({m}), {m}, beta=0.5, alpha=2)
            aten.matmul.default({m}, aten.tanh.default({m}))
            aten.outer.default({v}, aten.tanh.default({v}))
            aten.linear.default({m}, aten.tanh.default({m}), {v})
        """,
        "v": """
            aten.mv.default(aten.tanh.default({m}), {v})
            aten.addmv.default({v}, {m}, aten.tanh.default({v}))
        """,
        "g": """
            aten.bmm.default({g}, aten.tanh.default({g}))
            aten.baddbmm.default({g}, {g}, aten.tanh.default({g}))
        """,
    }
)

IMAGES = table(
    {
        "i": """
            aten.convolution.default({i}, {k}, {v}, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            aten.convolution.default({i}, {k}, None, [1, 1], [2, 2], [2, 2], False, [0, 0], 1)
            aten.upsample_nearest2d.default({j}, [4, 4])
            aten.constant_pad_nd.default({j}, [1, 1, 1, 1], 0.5)
            aten.avg_pool2d.default({i}, [3, 3], [1, 1], [1, 1])
            aten.scaled_dot_product_attention.default({i}, {i}, {i})
            aten.avg_pool2d_backward.default({j}, {i}, [2, 2], [2, 2], [0, 0], False, True, None)
        """,
        "j": """
            aten.convolution.default({i}, {k}, {v}, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
            aten._adaptive_avg_pool2d.default({i}, [2, 2])
            aten.avg_pool2d.default({i}, [2, 2])
        """,
        "j_": "aten.max_pool2d_with_indices.default({i}, [2, 2])",
        "i_": "aten.max_pool2d_with_indices.default({i}, [3, 3], [1, 1], [1, 1])",
        "ivv": """
            aten.native_batch_norm.default({i}, {v}, {v}, {v!}, {v!}, True, 0.1, 1e-05)
            aten._native_batch_norm_legit.default({i}, {v}, None, {v!}, {v!}, True, 0.1, 1e-05)
        """,
        "mcc": "aten.native_layer_norm.default({m}, [4], {v}, {v}, 1e-05)",
        "i_v": """
            aten.convolution_backward.default({i}, {i}, {k}, [4], [1, 1], [1, 1], [1, 1], \
                False, [0, 0], 1, [True, False, True])
        """,
        "m_v": """
            aten.native_layer_norm_backward.default({m}, {m}, [4], {c}, {c}, {v}, {v}, \
                [True, False, True])
        """,
        "k": "aten.mul_.Scalar({k!}, 0.5)",
    }
)
