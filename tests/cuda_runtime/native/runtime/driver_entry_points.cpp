// CUDA Runtime API, section "Driver Entry Point Access".
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "settings.h"

namespace {

int not_supported() {
  standin::trace("a function of the driver that the stand-in lacks is called");
  return cudaErrorNotSupported;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* found = driver ? dlsym(driver, name) : nullptr;
  *function = found ? found : reinterpret_cast<void*>(not_supported);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
