"""Models of any kind as functions that Dynamo can trace, run and copied without a change to them.

`as_callable` and `model_function` make the function, `example_run` runs it once, `reachable_state`
finds what the run may change, and `preserve_state` restores it; `meta_copy` and `shared_copy` are
modules with other tensors, or with the same.
"""
