"""CUDA graphs of a program: what can be captured, when, which one a call replays, whose memory.

In: a program that can be launched, and a device that captures. Out: a callable that replays. Of the
rest of the runtime it imports what launches.
"""
