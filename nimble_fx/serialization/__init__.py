"""Program files: a schedule as one JSON text, which is not trusted when it is read.

The graph in the file decides. Reading runs nothing: names are looked up among operators and
functions of sizes, everything else is data, and anything invalid is a FileError that says where.

In: a `ScheduledProgram`, or a path. Out: the text of a file, or the program in a file, with each
claim checked against the operators. It imports the IR, devices, and the verifier's schemas.
"""

from nimble_fx.serialization.claims import check_claims
from nimble_fx.serialization.document import absolute, check_sizes, decode, encode, read, write
from nimble_fx.serialization.folded_claims import check_folded
from nimble_fx.serialization.operator_allowlist import check_harmless

__all__ = [
    "absolute",
    "check_claims",
    "check_folded",
    "check_harmless",
    "check_sizes",
    "decode",
    "encode",
    "read",
    "write",
]
