// Limits of a launch.
#pragma once
#include <cuda_runtime_api.h>

namespace standin {
bool is_launchable(dim3 grid, dim3 block);
}
