// Memory of the device and pinned memory: all of it is the host's.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace standin {

struct Allocation {
  uintptr_t address = 0;
  size_t size = 0;
  int device = 0;
  bool is_pinned_host = false;
};

// The allocation that an address lies in; null if in none.
const Allocation* allocation_of(const void* address);

// Whether memory lies inside of one allocation, or is ordinary memory of the host's.
bool is_inside(const void* address, size_t n);

// Whether memory was an allocation and has been freed. May be asked by a signal handler.
bool was_freed(const void* address);

// Fills memory with bytes that are NaN in every type of floating point, and -1 or out of range as
// integers, so that a task that reads what nobody wrote computes what is seen to be wrong.
void poison(void* address, size_t n);

// Counts memory against the current device's; an error if there is not so much.
cudaError_t account(long n);

// Adds to the allocations memory that was reserved elsewhere, or takes it from them.
void add_range(void* address, size_t n);
void remove_range(void* address);

}  // namespace standin
