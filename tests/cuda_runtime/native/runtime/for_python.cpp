// What the Python part and the tests call.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "counters.h"
#include "errors.h"
#include "lock.h"
#include "standin.h"
#include "streams.h"

namespace {

std::mutex dropped_mutex;

std::vector<long>& dropped() {
  static auto* keys = new std::vector<long>;
  return *keys;
}

// The number of a host function of Python's. Once no task and no graph has it any more it is
// dropped, which Python asks about when it likes: a callback could come under any lock.
struct Key {
  explicit Key(long number) : number(number) {}
  ~Key() {
    std::lock_guard<std::mutex> guard(dropped_mutex);
    dropped().push_back(number);
  }
  const long number;
};

}  // namespace

StandinCounters& standin::counters() {
  static StandinCounters all = {};
  return all;
}

int standin::enqueue_launch(cudaStream_t stream, const char* label, Body body) {
  Locked locked;
  ++counters().launches;
  return enqueue(stream, label, std::move(body), label);
}

extern "C" {

void standin_get_counters(StandinCounters* found) {
  standin::Locked locked;
  *found = standin::counters();
}

int standin_enqueue(cudaStream_t stream, const char* label, void (*function)(long), long number) {
  const auto key = std::make_shared<Key>(number);
  return standin::enqueue(stream, label, [=] { function(key->number); }, __func__);
}

long standin_take_dropped(long* numbers, long room) {
  std::lock_guard<std::mutex> guard(dropped_mutex);
  auto& all = dropped();
  const long n = std::min<long>(room, all.size());
  std::copy(all.end() - n, all.end(), numbers);
  all.resize(all.size() - n);
  return n;
}

void standin_set_mode(const char* name, unsigned seed) {
  standin::Locked locked;
  standin::set_mode(standin::mode_named(name), seed);
}

}  // extern "C"
