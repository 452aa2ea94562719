// CUDA Runtime API, "Stream Management": beginning and ending a capture, and asking about one.
#include "capture.h"

#include <algorithm>
#include <set>

#include "active_captures.h"
#include "counters.h"
#include "errors.h"
#include "lock.h"

namespace standin {
namespace {

unsigned long long n_captures = 0;

cudaStreamCaptureStatus status(const CUstream_st* stream) {
  if (!stream->capture) return cudaStreamCaptureStatusNone;
  return stream->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
}

// Whether all nodes come before what the origin has captured last.
bool is_joined(const Capture& capture) {
  std::set<const CUgraphNode_st*> seen;
  auto left = capture.origin->captured_last;
  while (!left.empty()) {
    const auto* node = left.back();
    left.pop_back();
    if (seen.insert(node).second) left.insert(left.end(), node->before.begin(), node->before.end());
  }
  const auto& nodes = capture.graph->nodes;
  return std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    return node->is_immediate || seen.count(node.get());
  });
}

// CUDA Runtime API, cudaStreamEndCapture: "Capture must have been initiated on stream via a call to
// cudaStreamBeginCapture. If capture was invalidated, due to a violation of the rules of stream
// capture, then a NULL graph will be returned. If the mode argument to cudaStreamBeginCapture was
// not cudaStreamCaptureModeRelaxed, this call must be from the same thread".
bool is_ended_elsewhere(const CapturePointer& capture) {
  const bool is_own = capture->thread == std::this_thread::get_id();
  return !is_own && capture->mode != cudaStreamCaptureModeRelaxed;
}

cudaError_t ended(const CapturePointer& capture) {
  if (is_ended_elsewhere(capture)) return cudaErrorStreamCaptureWrongThread;
  if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  return is_joined(*capture) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

void end(const CapturePointer& capture) {
  for (auto* stream : streams()) {
    if (stream->capture != capture) continue;
    stream->capture = nullptr;
    stream->captured_last.clear();
  }
  capture->is_ended = true;
  auto& active = active_captures();
  active.erase(std::find(active.begin(), active.end(), capture));
  trace("capture %llu ends with %zu nodes", capture->id, capture->graph->nodes.size());
}

}  // namespace

std::vector<CapturePointer>& active_captures() {
  static auto* all = new std::vector<CapturePointer>;
  return *all;
}

cudaError_t add_captured(CUstream_st* stream, std::string label, Body body) {
  if (stream->capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  trace("capture on stream %d: %s", stream->id, label.c_str());
  label = "captured on stream " + std::to_string(stream->id) + ": " + std::move(label);
  auto* node = add_node(stream->capture->graph, std::move(label), stream->captured_last,
                        std::move(body));
  stream->captured_last = {node};
  ++counters().captured;
  return cudaSuccess;
}

void add_immediate(CUstream_st* stream, std::string label, Body body) {
  if (stream->capture->is_invalid) return;
  add_node(stream->capture->graph, std::move(label), stream->captured_last, std::move(body))
      ->is_immediate = true;
}

}  // namespace standin

using namespace standin;

extern "C" {

// cudaStreamBeginCapture: "Capture may not be initiated if stream is cudaStreamLegacy. Capture must
// be ended on the same stream in which it was initiated, and it may only be initiated if the stream
// is not already in capture mode."
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Locked locked;
  auto* stream = resolved(handle);
  if (stream->is_legacy) STANDIN_RETURN(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) STANDIN_RETURN(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>(
      Capture{++n_captures, mode, std::this_thread::get_id(), stream, new CUgraph_st});
  trace("capture %llu begins on stream %d", capture->id, stream->id);
  stream->capture = capture;
  stream->captured_last.clear();
  active_captures().push_back(capture);
  return cudaSuccess;
}

// CUDA C++ Programming Guide, "Cross-stream Dependencies and Events": "Any other streams which are
// being captured to the same graph, due to event-based dependencies, must also be joined back to
// the origin stream."
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Locked locked;
  auto* stream = resolved(handle);
  const auto capture = stream->capture;
  *graph = nullptr;
  if (!capture) STANDIN_RETURN(cudaErrorIllegalState);
  if (capture->origin != stream) {
    invalidate(capture, __func__);
    STANDIN_RETURN(cudaErrorStreamCaptureUnmatched);
  }
  const cudaError_t error = ended(capture);
  end(capture);  // also from another thread, as CUDA 13.0 on an H100
  if (error)
    delete capture->graph;
  else
    *graph = capture->graph;
  STANDIN_RETURN(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* found) {
  Locked locked;
  auto* stream = resolved(handle);
  STANDIN_RETURN_IF(legacy_use(stream, __func__));
  *found = status(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* found,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** last, const cudaGraphEdgeData** edges,
                                     size_t* n) {
  Locked locked;
  auto* stream = resolved(handle);
  *found = status(stream);
  if (edges) *edges = nullptr;
  if (!stream->capture) return cudaSuccess;
  if (id) *id = stream->capture->id;
  if (graph) *graph = stream->capture->graph;
  if (last) *last = stream->captured_last.data();
  if (n) *n = stream->captured_last.size();
  return cudaSuccess;
}

}  // extern "C"
