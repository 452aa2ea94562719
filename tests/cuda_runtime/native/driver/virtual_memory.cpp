// CUDA Driver API, section "Virtual Memory Management", which PyTorch's expandable segments use.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include "memory.h"
#include "lock.h"

namespace {

using Address = unsigned long long;  // CUdeviceptr

constexpr size_t GRANULARITY = 2 << 20;
constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

int remap(Address address, size_t n, int protection) {
  void* made = mmap(pointer(address), n, protection, FLAGS | MAP_FIXED, -1, 0);
  return made == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}

}  // namespace

extern "C" {

int cuMemGetAllocationGranularity(size_t* granularity, const void*, int) {
  *granularity = GRANULARITY;
  return cudaSuccess;
}

// A handle of physical memory is its size: the memory itself comes with the mapping.
int cuMemCreate(unsigned long long* handle, size_t n, const void*, unsigned long long) {
  standin::Locked locked;
  *handle = n;
  return standin::account(n);
}

int cuMemRelease(unsigned long long handle) {
  standin::Locked locked;
  return standin::account(-static_cast<long>(handle));
}

int cuMemAddressReserve(Address* address, size_t n, size_t, Address, unsigned long long) {
  standin::Locked locked;
  void* start = mmap(nullptr, n + GRANULARITY, PROT_NONE, FLAGS, -1, 0);
  if (start == MAP_FAILED) return cudaErrorMemoryAllocation;
  const auto first = reinterpret_cast<Address>(start);
  *address = (first + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
  standin::add_range(pointer(*address), n);
  return cudaSuccess;
}

int cuMemAddressFree(Address address, size_t n) {
  standin::Locked locked;
  standin::remove_range(pointer(address));
  return munmap(pointer(address), n) ? cudaErrorInvalidValue : cudaSuccess;
}

int cuMemMap(Address address, size_t n, size_t, unsigned long long, unsigned long long) {
  return remap(address, n, PROT_READ | PROT_WRITE);
}

int cuMemUnmap(Address address, size_t n) { return remap(address, n, PROT_NONE); }

int cuMemSetAccess(Address, size_t, const void*, size_t) { return cudaSuccess; }

// CU_POINTER_ATTRIBUTE_MEMORY_TYPE, _DEVICE_POINTER and _DEVICE_ORDINAL.
int cuPointerGetAttribute(void* value, int which, Address address) {
  cudaPointerAttributes attributes;
  cudaPointerGetAttributes(&attributes, pointer(address));
  if (attributes.type == cudaMemoryTypeUnregistered) return cudaErrorInvalidValue;
  if (which == 2)
    *static_cast<int*>(value) = attributes.type;
  else if (which == 3)
    *static_cast<Address*>(value) = address;
  else if (which == 9)
    *static_cast<int*>(value) = attributes.device;
  else
    return cudaErrorNotSupported;
  return cudaSuccess;
}

}  // extern "C"
