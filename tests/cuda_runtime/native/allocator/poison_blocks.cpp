// Poisons the blocks of PyTorch's caching allocator, which says what it hands out and takes back.
#include <c10/cuda/CUDACachingAllocator.h>

extern "C" void standin_poison(void* address, size_t n, cudaStream_t stream);
extern "C" int standin_is_captured(cudaStream_t stream);

namespace {

using c10::CachingDeviceAllocator::TraceEntry;

// A block of a graph's own pool is written to by each replay, whoever holds it or not, in no order
// with its stream. So one that is freed outside of a capture is left alone.
bool is_of_a_graph(const TraceEntry& entry) {
  return entry.mempool_.first != 0 || entry.mempool_.second != 0;
}

void on_entry(const TraceEntry& entry) {
  const bool is_new = entry.action_ == TraceEntry::ALLOC;
  if (!is_new && entry.action_ != TraceEntry::FREE_COMPLETED) return;
  const auto stream = static_cast<cudaStream_t>(entry.stream_);
  if (!is_new && is_of_a_graph(entry) && !standin_is_captured(stream)) return;
  standin_poison(reinterpret_cast<void*>(entry.addr_), entry.size_, stream);
}

}  // namespace

// To be called once CUDA is initialized.
extern "C" void standin_poison_blocks() {
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(on_entry);
}
