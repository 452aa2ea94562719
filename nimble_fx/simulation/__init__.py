"""What a schedule takes on a device that need not be here: its time and its memory.

In: a scheduled `TaskGraph` and the costs of its tasks. Out: a timeline, a makespan in
microseconds, a peak in bytes. It imports the IR and the costs.
"""
