"""Makes the source of stub functions, for functions of NVIDIA's libraries without code here.

A stub is weak: the code in `native/` wins over it. By its name it makes a handle, succeeds, or says
that it is not supported.
"""

import re

from tests.cuda_runtime.wheel import Needed

_NOT_SUPPORTED = {
    "libcudart.so.13": 801,
    "libcudnn.so.9": 3000,
    "libcuda.so.1": 801,
    "libcupti.so.13": 27,
    "libnvidia-ml.so.1": 3,
    "libcublas.so.13": 0,  # a product is computed by a host function that comes behind it
    "libcublasLt.so.13": 0,
}
_ERROR = 1
"""Of the other libraries."""

_HEAD = """#include <cstdio>
#include <cstdlib>
[[maybe_unused]] static int answer(const char* name, int error) {
  if (error && std::getenv("STANDIN_TRACE"))
    std::fprintf(stderr, "[stand-in] %s is not supported\\n", name);
  return error;
}
extern "C" {
"""
_TEXT = r"Get(ErrorString|LastError|StatusString|StatusName)"
_MAKES = r"Create(_v2)?$"
_SUCCEEDS = r"Set|Get|Destroy|Init|GroupStart|GroupEnd"


def source(library: Needed) -> str:
    """C++ source of the stubs of a library."""
    return _HEAD + "".join(_stub(name, library.soname) for name in sorted(library.versions)) + "}\n"


def version_script(library: Needed) -> str:
    """A linker's script that gives the symbols of a library the versions that are asked for."""
    versions = sorted(set(library.versions.values()) - {""})
    if not versions:
        return "{ global: *; };\n"
    return "".join(f"{version} {{ global: *; local: _ZN*; }};\n" for version in versions)


def _stub(name: str, soname: str) -> str:
    error = _NOT_SUPPORTED.get(soname, _ERROR)
    head = "__attribute__((weak))"
    if soname != "libcudart.so.13":
        if re.search(_TEXT, name):
            return f'{head} const char* {name}() {{ return "not supported by the stand-in"; }}\n'
        if re.search(_MAKES, name):
            return f"{head} int {name}(void** p) {{ *p = std::calloc(1, 4096); return 0; }}\n"
        if re.search(_SUCCEEDS, name):
            return f"{head} int {name}() {{ return 0; }}\n"
    return f'{head} int {name}() {{ return answer("{name}", {error}); }}\n'
