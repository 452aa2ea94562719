"""Calls of a model that `nimble_fx.compile` compiled ahead, without Dynamo's frame evaluation.

`guarded_call` checks Dynamo's guards and calls the code that Dynamo wrote, or the function that
`direct_call` emits in its place. `unguarded_call` checks only the inputs (`input_check`) and which
weights the model has (`compiled_weights`). Both learn through `graph_call` what that code passes to
its graph.
"""
