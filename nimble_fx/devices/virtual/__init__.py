"""A simulated asynchronous GPU on the CPU, which exposes missing waits and early frees.

The runtime uses `device`: streams, events, capture and replay. The other modules are its queues,
memory, launches and the results of its kernels.
"""
