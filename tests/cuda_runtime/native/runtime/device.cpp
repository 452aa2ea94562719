// CUDA Runtime API, section "Device Management": a device that says what it is.
#include "device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "capture.h"
#include "counters.h"
#include "errors.h"
#include "lock.h"
#include "settings.h"

using namespace standin;

namespace {

thread_local int current = 0;

// Of compute capability 8.0 (CUDA C++ Programming Guide, "Compute Capabilities").
constexpr int WARP = 32, THREADS_PER_BLOCK = 1024, THREADS_PER_MULTIPROCESSOR = 2048;
constexpr int BLOCKS_PER_MULTIPROCESSOR = 32, REGISTERS = 65536;
constexpr int MAX_GRID_X = 0x7fffffff, MAX_GRID_YZ = 65535;
constexpr int SHARED = 48 << 10, SHARED_OPTIN = 163 << 10, SHARED_PER_MULTIPROCESSOR = 164 << 10;

int attribute(cudaDeviceAttr which) {
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: return compute_capability() / 10;
    case cudaDevAttrComputeCapabilityMinor: return compute_capability() % 10;
    case cudaDevAttrMultiProcessorCount: return multiprocessors();
    case cudaDevAttrMaxThreadsPerBlock: return THREADS_PER_BLOCK;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return THREADS_PER_MULTIPROCESSOR;
    case cudaDevAttrWarpSize: return WARP;
    case cudaDevAttrMaxGridDimX: return MAX_GRID_X;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return MAX_GRID_YZ;
    case cudaDevAttrMaxSharedMemoryPerBlock: return SHARED;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return SHARED_OPTIN;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return SHARED_PER_MULTIPROCESSOR;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrConcurrentKernels: return 1;
    default: return 0;
  }
}

void describe_limits(cudaDeviceProp* p) {
  p->warpSize = WARP;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = THREADS_PER_BLOCK;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = MAX_GRID_X;
  p->maxGridSize[1] = p->maxGridSize[2] = MAX_GRID_YZ;
  p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
  p->maxBlocksPerMultiProcessor = BLOCKS_PER_MULTIPROCESSOR;
  p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
  p->sharedMemPerBlock = SHARED;
  p->sharedMemPerBlockOptin = SHARED_OPTIN;
  p->sharedMemPerMultiprocessor = SHARED_PER_MULTIPROCESSOR;
  p->totalConstMem = 65536;
  p->memPitch = 0x7fffffff;
  p->textureAlignment = 512;
}

void describe_abilities(cudaDeviceProp* p) {
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
  p->streamPrioritiesSupported = p->cooperativeLaunch = p->memoryPoolsSupported = 1;
  p->hostRegisterSupported = 1;
  p->asyncEngineCount = 2;
  p->memoryBusWidth = 384;
  p->l2CacheSize = 4 << 20;
}

}  // namespace

int standin::current_device() { return current; }

extern "C" {

cudaError_t cudaGetDeviceCount(int* n) {
  *n = number_of_devices();
  STANDIN_RETURN(*n ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= number_of_devices()) STANDIN_RETURN(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= number_of_devices()) STANDIN_RETURN(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "CPU stand-in (no GPU)");
  properties->uuid.bytes[15] = properties->pciBusID = device + 1;
  properties->totalGlobalMem = memory_per_device();
  properties->major = compute_capability() / 10;
  properties->minor = compute_capability() % 10;
  properties->multiProcessorCount = multiprocessors();
  describe_limits(properties);
  describe_abilities(properties);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = attribute(which);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int n, int device) {
  std::snprintf(text, n, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceSynchronize() {
  Locked locked;
  STANDIN_RETURN_IF(waiting_for_device(current, __func__));
  ++counters().synchronizations;
  Tasks all;
  for (const auto* stream : streams())
    if (stream->device == current) all.insert(all.end(), stream->last.begin(), stream->last.end());
  finish(all);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = THREADS_PER_BLOCK;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = compute_capability();
  attributes->maxDynamicSharedSizeBytes = SHARED_OPTIN;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int block,
                                                                   size_t, unsigned) {
  *n = std::max(1, THREADS_PER_MULTIPROCESSOR / std::max(block, 1));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* function, int block,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, function, block, shared, 0);
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
