"""An asynchronous GPU played on the CPU, on which a missing wait or an early free shows.

`device` is what the runtime uses: streams, events, capture and replay. The other modules are its
queues, memory, launches and the results of its kernels.
"""
