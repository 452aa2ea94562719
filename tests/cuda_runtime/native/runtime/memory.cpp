// CUDA Runtime API, section "Memory Management": allocation.
#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

#include "capture.h"
#include "counters.h"
#include "device.h"
#include "errors.h"
#include "lock.h"
#include "tasks.h"

namespace standin {
namespace {

constexpr size_t PAGE = 4096, ALIGNMENT = 2 << 20;
constexpr int POISON = 0xff;

using Allocations = std::map<uintptr_t, Allocation>;

Allocations& allocations() {
  static auto* all = new Allocations;
  return *all;
}

// Addresses are never used again, so that memory that was freed stays known as that.
Allocations& freed() {
  static auto* all = new Allocations;
  return *all;
}

size_t used[64];

const Allocation* found_in(const Allocations& all, const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = all.upper_bound(address);
  if (after == all.begin()) return nullptr;
  const Allocation& found = (--after)->second;
  return address < found.address + found.size ? &found : nullptr;
}

// Reserves aligned addresses, and makes the memory there usable.
void* mapped(size_t size) {
  const size_t reserved = size + ALIGNMENT;
  void* start = mmap(nullptr, reserved, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(start);
  const auto aligned = (first + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  auto* memory = reinterpret_cast<void*>(aligned);
  if (aligned > first) munmap(start, aligned - first);
  const size_t tail = first + reserved - (aligned + size);
  if (tail) munmap(reinterpret_cast<void*>(aligned + size), tail);
  mprotect(memory, size, PROT_READ | PROT_WRITE);
  return memory;
}

cudaError_t allocate(void** pointer, size_t n, bool is_pinned_host) {
  *pointer = nullptr;
  if (n == 0) return cudaSuccess;
  const size_t size = (n + PAGE - 1) / PAGE * PAGE;
  if (!is_pinned_host)
    if (const auto error = account(size)) return error;
  *pointer = mapped(size);
  if (!*pointer) return cudaErrorMemoryAllocation;
  poison(*pointer, size);
  const auto address = reinterpret_cast<uintptr_t>(*pointer);
  allocations()[address] = {address, size, current_device(), is_pinned_host};
  ++counters().allocations;
  return cudaSuccess;
}

// Makes memory inaccessible, once nothing that is pending can use it.
void retire(Allocation allocation) {
  auto* memory = reinterpret_cast<void*>(allocation.address);
  mmap(memory, allocation.size, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
       -1, 0);
  freed()[allocation.address] = allocation;
}

// CUDA C++ Programming Guide, "Stream Ordered Memory Allocator": "Managing memory allocations using
// cudaMalloc and cudaFree causes GPU to synchronize across all executing CUDA streams." The
// host does not wait here, although CUDA makes it wait too: PyTorch's allocator frees under its lock,
// for which another thread may wait that holds Python's interpreter lock, which tasks need.
cudaError_t release(void* pointer) {
  if (!pointer) return cudaSuccess;
  const auto found = allocations().find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations().end()) return cudaErrorInvalidValue;
  const Allocation allocation = found->second;
  allocations().erase(found);
  if (!allocation.is_pinned_host) used[allocation.device] -= allocation.size;
  ++counters().frees;
  issue_barrier("free", [allocation] { retire(allocation); });
  return cudaSuccess;
}

}  // namespace

const Allocation* allocation_of(const void* address) { return found_in(allocations(), address); }

bool is_inside(const void* pointer, size_t n) {
  const Allocation* found = allocation_of(pointer);
  return !found ||
         reinterpret_cast<uintptr_t>(pointer) + n <= found->address + found->size;
}

bool was_freed(const void* address) { return found_in(freed(), address); }

void poison(void* address, size_t n) { std::memset(address, POISON, n); }

cudaError_t account(long n) {
  size_t& total = used[current_device()];
  if (n > 0 && total + n > memory_per_device()) return cudaErrorMemoryAllocation;
  total += n;
  return cudaSuccess;
}

void add_range(void* pointer, size_t n) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  allocations()[address] = {address, n, current_device(), false};
}

void remove_range(void* pointer) { allocations().erase(reinterpret_cast<uintptr_t>(pointer)); }

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t n) {
  Locked locked;
  STANDIN_RETURN_IF(unsafe_call(__func__));
  STANDIN_RETURN(allocate(pointer, n, false));
}

cudaError_t cudaFree(void* pointer) {
  Locked locked;
  STANDIN_RETURN_IF(unsafe_call(__func__));
  STANDIN_RETURN(release(pointer));
}

cudaError_t cudaHostAlloc(void** pointer, size_t n, unsigned) {
  Locked locked;
  STANDIN_RETURN_IF(unsafe_call(__func__));
  STANDIN_RETURN(allocate(pointer, n, true));
}

cudaError_t cudaFreeHost(void* pointer) {
  Locked locked;
  STANDIN_RETURN_IF(unsafe_call(__func__));
  STANDIN_RETURN(release(pointer));
}

cudaError_t cudaHostRegister(void* pointer, size_t n, unsigned) {
  Locked locked;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  allocations()[address] = {address, n, current_device(), true};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  Locked locked;
  const bool was_there = allocations().erase(reinterpret_cast<uintptr_t>(pointer));
  STANDIN_RETURN(was_there ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t* unused, size_t* total) {
  Locked locked;
  *total = memory_per_device();
  *unused = *total - used[current_device()];
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Locked locked;
  auto* address = const_cast<void*>(pointer);
  *attributes = {};
  if (const Allocation* found = allocation_of(pointer)) {
    attributes->type = found->is_pinned_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = found->device;
    attributes->devicePointer = address;
    attributes->hostPointer = found->is_pinned_host ? address : nullptr;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = address;
  }
  return cudaSuccess;
}

}  // extern "C"
