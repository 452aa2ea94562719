"""Plans: what a schedule of a model would gain on a GPU that this machine need not have.

`plan` is `nimble_fx.plan`; `planned_device` and `planned_kernels` say for which device, and with
which kernels.
"""
