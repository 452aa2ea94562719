"""The public entry points: a module, function or exported program becomes one Dynamo graph.

In: a model and example inputs, as for `nimble_fx.compile`, `nimble_fx.plan` or `nimble_fx.Nimble`.
Out: a call through `torch.compile` that leaves the model's state unchanged. It imports what the
compiler imports, and the compiler itself; only `nimble_fx/__init__.py` imports it.
"""
