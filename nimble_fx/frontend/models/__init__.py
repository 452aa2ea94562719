"""Models of any kind as functions that Dynamo can trace, run and copied without a change to them.

`model_function` makes the function, `example_run` runs it once, and `preserve_state` restores what
the run changed; `meta_copy` and `shared_copy` are modules with other tensors, or with the same.
"""
