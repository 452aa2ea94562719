"""Simulates the time and memory of a schedule on any device, without running it.

In: a scheduled `TaskGraph` and the costs of its tasks. Out: a timeline, a makespan in
microseconds, a peak in bytes. It imports the IR and the costs.
"""
