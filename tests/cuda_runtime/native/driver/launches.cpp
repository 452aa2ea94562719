// CUDA Driver API, sections "Execution Control" and "Occupancy": launches of modules' kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cubin.h"
#include "kernels.h"
#include "standin.h"

namespace {

using standin::Kernel;

// CUfunction_attribute.
enum Attribute { MAX_THREADS = 0, NUM_REGS = 4, MAX_DYNAMIC_SHARED = 8 };

constexpr int MAX_SHARED = 227 << 10, INVALID_HANDLE = 400;

// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  cudaStream_t stream;
  void* attributes;
  unsigned n_attributes;
};

struct Call {
  unsigned grid[3];
  std::vector<char> parameters;  // a copy, as a launch makes one
};

// Computes a launch; Python's, or none.
void (*interpreter)(long kernel, const unsigned* grid, const void* parameters);

int launch(const Kernel* kernel, dim3 grid, dim3 block, unsigned shared, cudaStream_t stream,
           void** arguments) {
  if (!standin::is_launchable(grid, block)) return cudaErrorInvalidValue;
  if (*kernel->is_unloaded) return INVALID_HANDLE;
  if (static_cast<int>(shared) > kernel->dynamic_shared) return cudaErrorInvalidValue;
  auto call = std::make_shared<Call>(Call{{grid.x, grid.y, grid.z}, {}});
  for (const auto& [position, parameter] : kernel->parameters) {
    const size_t end = parameter.offset + parameter.size;
    call->parameters.resize(std::max(call->parameters.size(), end));
    std::memcpy(call->parameters.data() + parameter.offset, arguments[position], parameter.size);
  }
  const std::string label = "kernel " + kernel->name;
  return standin::enqueue_launch(stream, label.c_str(), [number = kernel->number, call] {
    if (interpreter) interpreter(number, call->grid, call->parameters.data());
  });
}

}  // namespace

extern "C" {

void standin_set_interpreter(void (*function)(long, const unsigned*, const void*)) {
  interpreter = function;
}

int cuLaunchKernel(const Kernel* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, cudaStream_t stream,
                   void** arguments, void**) {
  return launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments);
}

int cuLaunchCooperativeKernel(const Kernel* kernel, unsigned gx, unsigned gy, unsigned gz,
                              unsigned bx, unsigned by, unsigned bz, unsigned shared,
                              cudaStream_t stream, void** arguments) {
  return launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments);
}

int cuLaunchKernelEx(const LaunchConfig* config, const Kernel* kernel, void** arguments, void**) {
  return launch(kernel, {config->grid_x, config->grid_y, config->grid_z},
                {config->block_x, config->block_y, config->block_z}, config->shared,
                config->stream, arguments);
}

int cuFuncGetAttribute(int* value, int which, const Kernel* kernel) {
  *value = which == MAX_THREADS          ? 1024
           : which == NUM_REGS           ? kernel->registers
           : which == MAX_DYNAMIC_SHARED ? kernel->dynamic_shared
                                         : 0;
  return cudaSuccess;
}

int cuFuncSetAttribute(Kernel* kernel, int which, int value) {
  if (which != MAX_DYNAMIC_SHARED) return cudaSuccess;
  if (value > MAX_SHARED) return cudaErrorInvalidValue;
  kernel->dynamic_shared = value;
  return cudaSuccess;
}

int cuFuncSetCacheConfig(Kernel*, int) { return cudaSuccess; }

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const Kernel* kernel, int block,
                                                size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, kernel, block, shared);
}

int cuOccupancyMaxActiveClusters(int* n, const Kernel*, const LaunchConfig*) {
  *n = 1;
  return cudaSuccess;
}

}  // extern "C"
