// Names the task that touches memory after cudaFree, as compute-sanitizer's memcheck would.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"
#include "tasks.h"

namespace {

struct sigaction previous;
int report_file = -1;

void say(const char* text, size_t n) {
  for (const int file : {report_file, STDERR_FILENO})
    if (file >= 0 && write(file, text, n) < 0) continue;
}

void on_fault(int, siginfo_t* info, void*) {
  if (standin::was_freed(info->si_addr)) {
    char text[512];
    const char* who = standin::is_in_task() ? standin::current_label() : "the host";
    const char* format = "illegal memory access: %s uses %p, which was freed\n";
    const int n = snprintf(text, sizeof text, format, who, info->si_addr);
    say(text, n);
  }
  sigaction(SIGSEGV, &previous, nullptr);  // the access is tried again, and ends the process
}

}  // namespace

// Reports to standard error, and to a file that outlives the process if it is not negative.
extern "C" void standin_report_faults(int file) {
  report_file = file;
  static bool is_watching = false;
  if (is_watching) return;
  is_watching = true;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previous);
}
