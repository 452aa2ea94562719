"""Updates in place again, which AOTAutograd has made functional.

`reinplace_updates` is the rewrite; `memory_accesses` and `parts_of_memory` say what else is read
and written meanwhile, and which parts of memory do not meet.
"""
