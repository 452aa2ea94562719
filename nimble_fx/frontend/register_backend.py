"""The entry point of the backend "nimble": registers it once, when PyTorch first looks it up.

Threads that look it up at the same time each load the entry point, and PyTorch registers what each
of them got, so that all but the first fail with "duplicate name". Therefore the backend is
registered here while this module is imported, which Python does once, and the entry point's value
is None: `register_backend(None, name)` is the form for decorators, which registers nothing, and
PyTorch then reads the backend from its table.
"""

from nimble_fx import backend
from nimble_fx.torch_internals.dynamo.names import lookup_backend, register_backend


def _reads_its_table() -> bool:
    """Whether PyTorch, with None as the entry point, looks the name up in its table."""
    try:
        lookup_backend("nimble")
    except KeyError:  # it is not registered yet
        return True
    except Exception:  # another version of PyTorch may fail on None
        return False
    return False


entry_point = None
if _reads_its_table():
    register_backend(backend.nimble, name="nimble")
else:
    entry_point = backend.nimble  # registered by PyTorch
