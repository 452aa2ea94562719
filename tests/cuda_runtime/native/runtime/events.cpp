// CUDA Runtime API, section "Event Management", and cudaStreamWaitEvent.
#include "events.h"

#include <chrono>

#include "capture.h"
#include "choice.h"
#include "counters.h"
#include "errors.h"
#include "lock.h"

using namespace standin;

namespace {

double milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

// cudaThreadExchangeStreamCaptureMode, on any mode: "the thread is still prohibited from API calls
// which necessarily conflict with stream capture, for example, attempting cudaEventQuery on an
// event that was last recorded inside a capture sequence."
cudaError_t asking_for_captured(cudaEvent_t event, const char* function) {
  if (!event->capture) return unsafe_call(function);
  invalidate(event->capture, function);
  return cudaErrorCapturedEvent;
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Locked locked;
  *event = new CUevent_st;
  (*event)->flags = flags;
  ++counters().events;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

// cudaEventDestroy: "An event may be destroyed before it is complete ... the call does not block".
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Locked locked;
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  Locked locked;
  auto* stream = resolved(handle);
  auto time = std::make_shared<double>(0);
  const Body body = [time] { *time = milliseconds(); };
  if (stream->capture) {
    if (stream->capture->is_invalid) STANDIN_RETURN(cudaErrorStreamCaptureInvalidated);
    if (flags & cudaEventRecordExternal)
      STANDIN_RETURN(add_captured(stream, "external event record", body));
    event->capture = stream->capture;
    event->captured = stream->captured_last;
    event->task = nullptr;
    return cudaSuccess;
  }
  STANDIN_RETURN_IF(legacy_use(stream, __func__));
  event->capture = nullptr;
  event->captured.clear();
  event->task = issue_on(stream, "event record", body);
  event->time = time;
  if (mode() == Mode::eager) advance();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Locked locked;
  STANDIN_RETURN_IF(asking_for_captured(event, __func__));
  if (!event->task || event->task->is_finished) return cudaSuccess;
  poll({event->task});
  STANDIN_RETURN(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Locked locked;
  STANDIN_RETURN_IF(asking_for_captured(event, __func__));
  ++counters().synchronizations;
  if (event->task) finish({event->task});
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* elapsed, cudaEvent_t start, cudaEvent_t end) {
  Locked locked;
  if (start->capture || end->capture) STANDIN_RETURN(cudaErrorCapturedEvent);
  const bool is_timed = !((start->flags | end->flags) & cudaEventDisableTiming);
  if (!start->task || !end->task || !is_timed) STANDIN_RETURN(cudaErrorInvalidResourceHandle);
  if (!start->task->is_finished || !end->task->is_finished) STANDIN_RETURN(cudaErrorNotReady);
  *elapsed = *end->time - *start->time;
  return cudaSuccess;
}

// cudaStreamWaitEvent: "Makes all future work submitted to stream wait for all work captured in
// event"; of an event that was never recorded it waits for nothing.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  Locked locked;
  auto* stream = resolved(handle);
  if (event->capture) STANDIN_RETURN(wait_in_capture(stream, event, __func__));
  if (!stream->capture) {
    if (event->task && !event->task->is_finished) stream->last.push_back(event->task);
    return cudaSuccess;
  }
  if (stream->capture->is_invalid) STANDIN_RETURN(cudaErrorStreamCaptureInvalidated);
  if (!event->task) return cudaSuccess;
  if (flags & cudaEventWaitExternal)
    STANDIN_RETURN(cudaErrorNotSupported);  // a graph that waits for others is not played
  // CUDA C++ Programming Guide, "Stream Capture", "Prohibited and Unhandled Operations": "It is
  // invalid to wait on a non-captured event from a stream which is being captured".
  invalidate(stream->capture, __func__);
  STANDIN_RETURN(cudaErrorStreamCaptureIsolation);
}

}  // extern "C"
