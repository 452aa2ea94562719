// Poison for memory that PyTorch's caching allocator hands out.
#include "capture.h"
#include "lock.h"
#include "memory.h"
#include "streams.h"

using namespace standin;

// The allocator orders a block by the stream that it belongs to: what was enqueued there before it
// was handed out may use its last contents, and what is enqueued there afterwards may write to it
// at once. So it is poisoned in the moment in which the former is done: no program that is right
// can tell, as the first thing it does with a block must come later and must be to write to it.
extern "C" void standin_poison(void* address, size_t n, cudaStream_t handle) {
  Locked locked;
  if (!allocation_of(address)) return;
  auto* stream = resolved(handle);
  const Body body = [=] { poison(address, n); };
  if (stream->capture)
    add_immediate(stream, "poison", body);
  else
    issue("poison", position(stream), body, true);
}
