// Registration and launch of compiled kernels. A launch is checked, enqueued or captured, and
// computes nothing: values come from host functions that Python enqueues behind it.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "counters.h"
#include "errors.h"
#include "kernels.h"
#include "lock.h"
#include "philox.h"
#include "streams.h"

namespace {

constexpr unsigned MAX_THREADS_PER_BLOCK = 1024, MAX_GRID_YZ = 65535;
constexpr size_t LABEL_LENGTH = 160;

struct RegisteredKernel {
  const char* mangled = nullptr;
  std::string label;             // demangled when first launched
  int philox_parameter = -1;
};

struct Variable {
  size_t size;
  void* memory;
};

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

auto& kernels() {
  static auto* all = new std::unordered_map<const void*, RegisteredKernel>;
  return *all;
}

auto& variables() {
  static auto* all = new std::unordered_map<const void*, Variable>;
  return *all;
}

thread_local std::vector<Configuration> configurations;

std::string demangled(const char* name) {
  int status;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  const std::string result = text ? text : name;
  std::free(text);
  return result;
}

void describe(RegisteredKernel& kernel) {
  const std::string name = demangled(kernel.mangled);
  kernel.label = "kernel " + (standin::is_traced() ? name : name.substr(0, LABEL_LENGTH));
  kernel.philox_parameter = standin::philox_parameter(name);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** parameters,
                   cudaStream_t stream, const char* caller) {
  standin::Locked locked;
  const auto found = kernels().find(function);
  if (found == kernels().end()) return cudaErrorInvalidDeviceFunction;
  if (!standin::is_launchable(grid, block)) return cudaErrorInvalidConfiguration;
  RegisteredKernel& kernel = found->second;
  if (kernel.label.empty()) describe(kernel);
  if (kernel.philox_parameter >= 0) standin::note_philox(parameters[kernel.philox_parameter]);
  ++standin::counters().launches;
  return standin::enqueue(stream, kernel.label, nullptr, caller);
}

}  // namespace

// CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications.
bool standin::is_launchable(dim3 grid, dim3 block) {
  const bool is_empty = !grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z;
  return !is_empty && block.x * block.y * block.z <= MAX_THREADS_PER_BLOCK &&
         grid.y <= MAX_GRID_YZ && grid.z <= MAX_GRID_YZ;
}

extern "C" {

// What nvcc's host code calls as a library is loaded: there is no code of a device to load.
void** __cudaRegisterFatBinary(void*) { return static_cast<void**>(std::calloc(1, 64)); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  standin::Locked locked;
  kernels()[host].mangled = name;
}

void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int, int) {
  standin::Locked locked;
  variables()[host] = {size, nullptr};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return cudaErrorInvalidConfiguration;
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** parameters,
                               size_t, cudaStream_t stream) {
  STANDIN_RETURN(launch(kernel, grid, block, parameters, stream, __func__));
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** parameters, size_t,
                             cudaStream_t stream) {
  STANDIN_RETURN(launch(function, grid, block, parameters, stream, __func__));
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                        void** parameters, size_t, cudaStream_t stream) {
  STANDIN_RETURN(launch(function, grid, block, parameters, stream, __func__));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** parameters) {
  STANDIN_RETURN(
      launch(function, config->gridDim, config->blockDim, parameters, config->stream, __func__));
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  standin::Locked locked;
  const auto found = variables().find(symbol);
  if (found == variables().end()) STANDIN_RETURN(cudaErrorInvalidSymbol);
  Variable& variable = found->second;
  if (!variable.memory) variable.memory = std::calloc(1, variable.size);
  *pointer = variable.memory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t n, size_t offset,
                               cudaMemcpyKind) {
  void* memory;
  STANDIN_RETURN_IF(cudaGetSymbolAddress(&memory, symbol));
  std::memcpy(static_cast<char*>(memory) + offset, source, n);
  return cudaSuccess;
}

}  // extern "C"
