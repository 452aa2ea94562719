// CUDA Driver API: initialization, devices and contexts. A context is its device's number plus one.
#include <cuda_runtime_api.h>

namespace {

void* context_of(int device) { return reinterpret_cast<void*>(static_cast<long>(device) + 1); }

}  // namespace

extern "C" {

int cuInit(unsigned) { return cudaSuccess; }

int cuDriverGetVersion(int* version) { return cudaDriverGetVersion(version); }

int cuDeviceGet(int* device, int index) {
  *device = index;
  return cudaSuccess;
}

int cuDeviceGetCount(int* n) { return cudaGetDeviceCount(n); }

int cuDeviceGetAttribute(int* value, int which, int device) {
  return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(which), device);
}

int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return cudaSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = context_of(device);
  return cudaSuccess;
}

int cuCtxGetCurrent(void** context) {
  int device;
  cudaGetDevice(&device);
  *context = context_of(device);
  return cudaSuccess;
}

int cuCtxGetDevice(int* device) { return cudaGetDevice(device); }

int cuCtxSetCurrent(void*) { return cudaSuccess; }
int cuCtxPushCurrent(void*) { return cudaSuccess; }
int cuCtxPopCurrent(void**) { return cudaSuccess; }

int cuCtxGetLimit(size_t* value, int) {
  *value = 1 << 20;
  return cudaSuccess;
}

int cuCtxSetLimit(int, size_t) { return cudaSuccess; }

int cuGetErrorString(int error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return cudaSuccess;
}

int cuGetErrorName(int error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return cudaSuccess;
}

}  // extern "C"
