// What the runtime gives to the stand-ins for the driver and for the other libraries.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

namespace standin {

// Enqueues a kernel's launch, or captures it. A body may be empty; it runs without the lock.
int enqueue_launch(cudaStream_t stream, const char* label, std::function<void()> body);

}  // namespace standin
