// The kernels of modules that were loaded, by number.
#pragma once
#include "cubin.h"

namespace standin {
const Kernel& kernel_of(long number);
}
