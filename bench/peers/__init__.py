"""The compilers and schedulers that this one is compared with, and the comparison."""
