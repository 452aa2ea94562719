// NVML: the same devices as the runtime's.
#include <cuda_runtime_api.h>

extern "C" {

int nvmlInit() { return 0; }
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "an error of the stand-in for NVML"; }

int nvmlDeviceGetCount_v2(unsigned* n) { return cudaGetDeviceCount(reinterpret_cast<int*>(n)); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<long>(index) + 1);
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  return nvmlDeviceGetHandleByIndex_v2(0, device);
}

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* n, void*) {
  *n = 0;
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) { return cudaDriverGetVersion(version); }

}  // extern "C"
