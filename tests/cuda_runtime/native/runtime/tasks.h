// The device's work: tasks, each after others, run in any order that this allows.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "settings.h"

namespace standin {

struct Task;
using TaskPointer = std::shared_ptr<Task>;
using Tasks = std::vector<TaskPointer>;
using Body = std::function<void()>;

struct Task {
  std::string label;
  Body body;
  uint64_t number = 0;      // in the order of issue
  Tasks before;             // those that it comes after and that are not finished
  std::vector<Task*> after;  // those that come after it
  size_t n_before = 0;      // how many of `before` are left
  bool is_immediate = false;
  bool is_finished = false;
};

// Issues a task that runs after others. An immediate one runs, under the lock, in the moment in
// which the last of the others finishes: nothing comes between.
TaskPointer issue(std::string label, const Tasks& before, Body body, bool is_immediate = false);

// Issues an immediate task after all that are unfinished; all that are issued later come after it.
void issue_barrier(std::string label, Body body);

// Runs what the device might have run by now: by mode, everything, nothing or some of it.
void advance();

// Waits for tasks: runs them and those that they come after.
void finish(const Tasks& tasks);
void finish_all();
Tasks all_unfinished();

// Runs one of the unfinished tasks that these wait for, or one of these, for a host that polls;
// nothing while a task runs, as PyTorch's allocator polls under its lock.
void poll(const Tasks& tasks);

bool are_finished(const Tasks& tasks);
Tasks unfinished(const Tasks& tasks);

// Whether this thread is in the body of a task, where it cannot wait for others.
bool is_in_task();

// The label of the task that runs now, for a signal handler; never null.
const char* current_label();

void set_mode(Mode mode, unsigned seed);  // first finishes all

}  // namespace standin
