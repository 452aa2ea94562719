// CUDA Runtime API, sections "Stream Management" and "Stream synchronization behavior".
#include "streams.h"

#include <algorithm>
#include <map>

#include "capture.h"
#include "counters.h"
#include "device.h"
#include "errors.h"
#include "lock.h"

namespace standin {
namespace {

constexpr int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;

std::vector<CUstream_st*>& all_streams() {
  static auto* all = new std::vector<CUstream_st*>;
  return *all;
}

CUstream_st* new_stream(unsigned flags, int priority, bool is_legacy) {
  auto* stream = new CUstream_st;
  stream->id = all_streams().size();
  stream->device = current_device();
  stream->priority = priority;
  stream->flags = flags;
  stream->is_legacy = is_legacy;
  all_streams().push_back(stream);
  return stream;
}

void add(Tasks& tasks, const Tasks& more) { tasks.insert(tasks.end(), more.begin(), more.end()); }

}  // namespace

const std::vector<CUstream_st*>& streams() { return all_streams(); }

CUstream_st* resolved(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    static std::map<int, CUstream_st*> legacy;
    auto& stream = legacy[current_device()];
    if (!stream) stream = new_stream(0, LEAST_PRIORITY, true);
    return stream;
  }
  if (handle == cudaStreamPerThread) {
    thread_local CUstream_st* own = new_stream(0, LEAST_PRIORITY, false);
    return own;
  }
  return handle;
}

// "The legacy default stream is an implicit stream which synchronizes with all other streams in the
// same CUcontext except for non-blocking streams": each of its tasks waits for all blocking
// streams, and each task of those waits for it.
Tasks position(const CUstream_st* stream) {
  Tasks found = stream->last;
  for (const auto* other : streams()) {
    const bool waits = stream->is_legacy ? other->is_blocking()
                                         : stream->is_blocking() && other->is_legacy;
    if (waits && other->device == stream->device) add(found, other->last);
  }
  return found;
}

TaskPointer issue_on(CUstream_st* stream, std::string label, Body body) {
  auto task = issue("stream " + std::to_string(stream->id) + ": " + std::move(label),
                    position(stream), std::move(body));
  stream->last = {task};
  ++counters().issued;
  return task;
}

cudaError_t enqueue(cudaStream_t handle, std::string label, Body body, const char* function) {
  Locked locked;
  auto* stream = resolved(handle);
  if (stream->is_destroyed) return cudaErrorInvalidResourceHandle;
  if (stream->capture) return add_captured(stream, std::move(label), std::move(body));
  if (const auto error = legacy_use(stream, function)) return error;
  issue_on(stream, std::move(label), std::move(body));
  advance();
  return cudaSuccess;
}

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  Locked locked;
  *stream = new_stream(flags, std::clamp(priority, GREATEST_PRIORITY, LEAST_PRIORITY), false);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, LEAST_PRIORITY);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }

// cudaStreamDestroy: "In case the device is still doing work in the stream when
// cudaStreamDestroy() is called, the function will return immediately".
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Locked locked;
  if (stream->capture) invalidate(stream->capture, __func__);
  stream->is_destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  Locked locked;
  *priority = resolved(handle)->priority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = LEAST_PRIORITY;
  if (greatest) *greatest = GREATEST_PRIORITY;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Locked locked;
  auto* stream = resolved(handle);
  STANDIN_RETURN_IF(waiting_for_captured(stream, __func__));
  STANDIN_RETURN_IF(legacy_use(stream, __func__));
  ++counters().synchronizations;
  finish(stream->is_legacy ? position(stream) : stream->last);
  return cudaSuccess;
}

// A host that polls sees progress: each call that answers "not ready" runs a task. CUDA 13.0 takes
// the call to be a potentially unsafe one, as an H100 has shown.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Locked locked;
  auto* stream = resolved(handle);
  STANDIN_RETURN_IF(waiting_for_captured(stream, __func__));
  STANDIN_RETURN_IF(legacy_use(stream, __func__));
  STANDIN_RETURN_IF(unsafe_call(__func__));
  const Tasks waited = stream->is_legacy ? position(stream) : stream->last;
  if (are_finished(waited)) return cudaSuccess;
  poll(waited);
  STANDIN_RETURN(cudaErrorNotReady);
}

// cudaStreamAddCallback: "this function is not supported with cudaStreamBeginCapture and
// cudaStreamEndCapture, unlike cudaLaunchHostFunc."
cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  Locked locked;
  auto* stream = resolved(handle);
  STANDIN_RETURN_IF(waiting_for_captured(stream, __func__));
  STANDIN_RETURN(enqueue(
      handle, "callback", [=] { callback(handle, cudaSuccess, data); }, __func__));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  STANDIN_RETURN(enqueue(stream, "host function", [=] { function(data); }, __func__));
}

}  // extern "C"
