"""The compilers and schedulers that nimble_fx is compared with, and the comparison."""
