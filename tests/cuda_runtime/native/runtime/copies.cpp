// CUDA Runtime API, "Memory Management" and "API synchronization behavior": copies and fills.
#include <cstring>
#include <memory>
#include <vector>

#include "capture.h"
#include "errors.h"
#include "lock.h"
#include "memory.h"
#include "streams.h"

using namespace standin;

namespace {

bool is_pageable(const void* address) { return !allocation_of(address); }

bool is_on_device(const void* address) {
  const Allocation* found = allocation_of(address);
  return found && !found->is_pinned_host;
}

// "API synchronization behavior": a call that copies from pageable host memory returns "once the
// pageable buffer has been copied to the staging memory". Any other source is read when the copy
// runs.
Body copying(void* target, const void* source, size_t n, bool is_staged) {
  if (!is_staged) return [=] { std::memmove(target, source, n); };
  const auto* bytes = static_cast<const char*>(source);
  auto staged = std::make_shared<std::vector<char>>(bytes, bytes + n);
  return [=] { std::memcpy(target, staged->data(), n); };
}

// There: a copy to pageable host memory returns "only once the copy has completed", and so does a
// synchronous one, but "for transfers from device memory to device memory, no host-side
// synchronization is performed".
cudaError_t copy(void* target, const void* source, size_t n, cudaStream_t handle,
                 bool is_synchronous, const char* function) {
  Locked locked;
  if (n == 0) return cudaSuccess;
  if (!is_inside(target, n) || !is_inside(source, n)) return cudaErrorInvalidValue;
  auto* stream = resolved(handle);
  const bool is_captured = stream->capture != nullptr;
  const bool is_waited = is_synchronous ? !(is_on_device(target) && is_on_device(source))
                                        : is_pageable(target);
  const Body body = copying(target, source, n, is_pageable(source) && !is_captured);
  const auto error = enqueue(handle, "copy of memory", body, function);
  if (!error && !is_captured && is_waited) finish(stream->last);
  return error;
}

}  // namespace

extern "C" {

// A synchronous call is unsafe in a capture: it would use the legacy stream (CUDA C++ Programming
// Guide, "Prohibited and Unhandled Operations").
cudaError_t cudaMemcpy(void* target, const void* source, size_t n, cudaMemcpyKind) {
  Locked locked;
  STANDIN_RETURN_IF(unsafe_call(__func__));
  STANDIN_RETURN(copy(target, source, n, nullptr, true, __func__));
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t n, cudaMemcpyKind,
                            cudaStream_t stream) {
  STANDIN_RETURN(copy(target, source, n, stream, false, __func__));
}

cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t n,
                                cudaStream_t stream) {
  STANDIN_RETURN(copy(target, source, n, stream, false, __func__));
}

cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind,
                              cudaStream_t stream) {
  auto* to = static_cast<char*>(target);
  auto* from = static_cast<const char*>(source);
  const Body body = [=] {
    for (size_t i = 0; i < height; ++i)
      std::memmove(to + i * target_pitch, from + i * source_pitch, width);
  };
  STANDIN_RETURN(enqueue(stream, "copy of memory", body, __func__));
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t n, cudaStream_t stream) {
  Locked locked;
  if (!is_inside(target, n)) STANDIN_RETURN(cudaErrorInvalidValue);
  STANDIN_RETURN(enqueue(stream, "memset", [=] { std::memset(target, value, n); }, __func__));
}

cudaError_t cudaMemset(void* target, int value, size_t n) {
  Locked locked;
  STANDIN_RETURN_IF(unsafe_call(__func__));
  return cudaMemsetAsync(target, value, n, nullptr);
}

}  // extern "C"
