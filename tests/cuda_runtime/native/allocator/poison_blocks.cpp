// Poisons the blocks that PyTorch's caching allocator hands out, fresh or used before.
//
// Not those that it takes back: a block may be dropped while another stream still reads it, as long
// as its own stream waits for the other before anything else is allocated there.
#include <c10/cuda/CUDACachingAllocator.h>

extern "C" void standin_poison(void* address, size_t n, cudaStream_t stream);

// To be called once CUDA is initialized.
extern "C" void standin_poison_blocks() {
  using c10::CachingDeviceAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ == TraceEntry::ALLOC)
      standin_poison(reinterpret_cast<void*>(entry.addr_), entry.size_,
                     static_cast<cudaStream_t>(entry.stream_));
  });
}
