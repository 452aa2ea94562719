// The lock of all of the runtime's state.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

namespace standin {

// A recursive lock that a thread can let go of entirely while it runs work of the device, which may
// call the runtime, or need Python's interpreter lock, which a thread that waits here may hold.
class RuntimeLock {
 public:
  void lock();
  void unlock();
  int release();            // lets go of it, however often it was taken; returns how often
  void restore(int depth);  // takes it again as often

 private:
  std::mutex mutex_;
  std::condition_variable is_free_;
  std::thread::id owner_;
  int depth_ = 0;
};

RuntimeLock& runtime_lock();

// Holds the lock for the rest of the block.
class Locked {
 public:
  Locked() { runtime_lock().lock(); }
  ~Locked() { runtime_lock().unlock(); }
  Locked(const Locked&) = delete;
};

// Leaves the lock to others for the rest of the block.
class Unlocked {
 public:
  Unlocked() : depth_(runtime_lock().release()) {}
  ~Unlocked() { runtime_lock().restore(depth_); }
  Unlocked(const Unlocked&) = delete;

 private:
  int depth_;
};

// Waits a moment for another thread, without this lock and without Python's interpreter lock.
void wait_for_other_threads();

}  // namespace standin
