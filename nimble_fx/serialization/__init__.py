"""Programs as files: a schedule as one JSON text, which anybody may have written.

The graph in the file is what counts. Reading runs nothing: names are looked up among operators and
functions of sizes, everything else is data, and what does not fit is a FileError that says where.

In: a `ScheduledProgram`, or a path. Out: its text, or what a text says, each statement checked
against the operators. It imports the IR, devices, and the verifier's tables of what operators do.
"""

from nimble_fx.serialization.claims import check_claims
from nimble_fx.serialization.document import decode, encode, read, write
from nimble_fx.serialization.operator_allowlist import check_harmless

__all__ = ["check_claims", "check_harmless", "decode", "encode", "read", "write"]
