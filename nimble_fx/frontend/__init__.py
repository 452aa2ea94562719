"""How a model gets in: any module, function or exported program becomes one Dynamo graph.

In: what a user hands to `nimble_fx.compile`, `nimble_fx.plan` or `nimble_fx.Nimble`. Out: a call
through `torch.compile`, with no trace left on the model. It imports whatever the compiler does, and
the compiler itself; only the public names in `nimble_fx` import it.
"""
