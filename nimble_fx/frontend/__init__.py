"""The public entry points: a module, function or exported program becomes one Dynamo graph.

In: a model and example inputs, as for `nimble_fx.compile`, `nimble_fx.plan` or `nimble_fx.Nimble`.
Out: a call through `torch.compile` that leaves the model's state unchanged. `models/` makes
functions of models, `calls/` calls what was compiled ahead, and `planning/` is `nimble_fx.plan`.
The package imports what the compiler imports, and the compiler itself; only `nimble_fx/__init__.py`
imports it.
"""
