#include "lock.h"

#include <dlfcn.h>

#include <chrono>

namespace standin {
namespace {

// Lets go of Python's interpreter lock, if this thread holds it.
class WithoutInterpreterLock {
 public:
  WithoutInterpreterLock() {
    static auto is_held = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    static auto save = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
    if (is_held && save && is_held()) state_ = save();
  }
  ~WithoutInterpreterLock() {
    static auto restore =
        reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
    if (state_) restore(state_);
  }

 private:
  void* state_ = nullptr;
};

}  // namespace

void RuntimeLock::lock() {
  std::unique_lock<std::mutex> guard(mutex_);
  const auto self = std::this_thread::get_id();
  if (depth_ == 0 || owner_ != self) {
    is_free_.wait(guard, [this] { return depth_ == 0; });
    owner_ = self;
  }
  ++depth_;
}

void RuntimeLock::unlock() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (--depth_ == 0) is_free_.notify_one();
}

int RuntimeLock::release() {
  std::lock_guard<std::mutex> guard(mutex_);
  const int depth = depth_;
  depth_ = 0;
  is_free_.notify_one();
  return depth;
}

void RuntimeLock::restore(int depth) {
  std::unique_lock<std::mutex> guard(mutex_);
  is_free_.wait(guard, [this] { return depth_ == 0; });
  owner_ = std::this_thread::get_id();
  depth_ = depth;
}

RuntimeLock& runtime_lock() {
  static auto* lock = new RuntimeLock;  // never destroyed: threads may outlive static objects
  return *lock;
}

void wait_for_other_threads() {
  Unlocked unlocked;
  WithoutInterpreterLock without;
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace standin
