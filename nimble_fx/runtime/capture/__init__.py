"""The CUDA graphs of a program: what can be captured, when, which graph a call replays, its memory.

In: a program that can be launched, and a device that captures. Out: a callable that replays. It
knows nothing of folded weights.
"""
