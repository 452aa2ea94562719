"""Turns functional updates, which AOTAutograd's functionalization made, back into in-place ones.

`reinplace_updates` is the rewrite; `memory_accesses` finds what else reads and writes the memory,
and `parts_of_memory` decides whether parts of memory overlap.
"""
