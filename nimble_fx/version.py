"""The version, for the package, the emitted modules and setup.py."""

__version__ = "0.1.0"
