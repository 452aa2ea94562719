"""The version of nimble_fx, for the package, the emitted modules and setup.py."""

__version__ = "0.1.0"
