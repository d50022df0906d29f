// The functions of the CUDA driver that reach us: virtual memory management, which PyTorch's expandable segments and
// the host's dynamic VRAM (aimdo) are made of, and what the latter asks of a driver besides. EMU_DRIVER=1 lets
// cuInit succeed; without it libraries that look for a driver (Triton, aimdo) find none and go their other way.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "copies.h"
#include "lock.h"
#include "memory.h"
#include "races.h"
#include "streams.h"
#include "watch.h"

#define API extern "C" __attribute__((visibility("default")))

using namespace card;

namespace {

// Physical memory: a file without a name, which may be mapped anywhere.
struct Physical {
  int file;
  std::size_t bytes;
  int owners;  // the handle and its mappings
};

std::map<std::uintptr_t, Physical*> mapped;  // by address
std::set<Physical*> handles;                 // that were not released yet

CUresult of_runtime(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return CUDA_SUCCESS;
    case cudaErrorMemoryAllocation: return CUDA_ERROR_OUT_OF_MEMORY;
    case cudaErrorNotReady: return CUDA_ERROR_NOT_READY;
    case cudaErrorHostMemoryAlreadyRegistered: return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    case cudaErrorHostMemoryNotRegistered: return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

void let_go(Physical* memory_of) {
  if (--memory_of->owners) return;
  memory.give(memory_of->bytes);
  close(memory_of->file);
  delete memory_of;
}

Physical* physical(CUmemGenericAllocationHandle handle) { return reinterpret_cast<Physical*>(handle); }
void* address(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

// ------------------------------------------------------------------------------------------------------ the driver

API CUresult cuInit(unsigned) { return variable("EMU_DRIVER", 0) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : "the emulated driver refused this";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = 0;
  return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
API CUresult cuDeviceGetName(char* text, int size, CUdevice) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  std::snprintf(text, size, "%s", properties.name);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) { return *bytes = settings.capacity, CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  // The two enumerations share their numbers.
  return of_runtime(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), 0));
}
API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) {
  std::memcpy(uuid->bytes, "headroom-emu-000", 16);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetLuid(char*, unsigned*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return of_runtime(cudaDeviceSynchronize()); }

// --------------------------------------------------------------------------------------- virtual memory management

API CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = GRANULE;
  return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                         unsigned long long) {
  Lock lock(mutex);
  if (bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
  if (!memory.take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  int file = memfd_create("card", 0);
  if (file < 0 || ftruncate(file, off_t(bytes))) {
    memory.give(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto* made = new Physical{file, bytes, 1};
  handles.insert(made);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made);
  return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Lock lock(mutex);
  if (!handles.erase(physical(handle))) return CUDA_ERROR_INVALID_VALUE;
  let_go(physical(handle));
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr* start, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  void* place = mmap(nullptr, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // What is cut off for the sake of alignment stays reserved: addresses cost nothing.
  *start = round_up(reinterpret_cast<std::uintptr_t>(place), GRANULE);
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr start, std::size_t bytes) {
  return munmap(address(start), bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr start, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long) {
  Lock lock(mutex);
  Physical* behind = physical(handle);
  if (!handles.count(behind)) return CUDA_ERROR_INVALID_VALUE;
  void* place = mmap(address(start), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, behind->file, off_t(offset));
  if (place == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  behind->owners++;
  mapped[start] = behind;
  memory.device[start] = bytes;
  return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr start, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  if (mprotect(address(start), bytes, PROT_READ | PROT_WRITE)) return CUDA_ERROR_INVALID_VALUE;
  if (settings.poison) std::memset(address(start), 0xFF, bytes);
  return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr start, std::size_t bytes) {
  Lock lock(mutex);
  host_waits_for_all();
  for (auto it = mapped.lower_bound(start); it != mapped.end() && it->first < start + bytes; it = mapped.erase(it)) {
    memory.device.erase(it->first);
    let_go(it->second);
  }
  forget(start, bytes);
  void* place = mmap(address(start), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return place == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// ---------------------------------------------------------------------------------------- the runtime by other names

API CUresult cuMemAlloc_v2(CUdeviceptr* start, std::size_t bytes) {
  return of_runtime(cudaMalloc(reinterpret_cast<void**>(start), bytes));
}
API CUresult cuMemFree_v2(CUdeviceptr start) { return of_runtime(cudaFree(address(start))); }
API CUresult cuMemAllocAsync(CUdeviceptr* start, std::size_t bytes, CUstream stream) {
  return of_runtime(cudaMallocAsync(reinterpret_cast<void**>(start), bytes, stream));
}
API CUresult cuMemFreeAsync(CUdeviceptr start, CUstream stream) { return of_runtime(cudaFreeAsync(address(start), stream)); }
API CUresult cuMemAllocHost_v2(void** start, std::size_t bytes) { return of_runtime(cudaHostAlloc(start, bytes, 0)); }
API CUresult cuMemFreeHost(void* start) { return of_runtime(cudaFreeHost(start)); }
API CUresult cuMemHostRegister_v2(void* start, std::size_t bytes, unsigned flags) {
  return of_runtime(cudaHostRegister(start, bytes, flags));
}
API CUresult cuMemHostUnregister(void* start) { return of_runtime(cudaHostUnregister(start)); }
API CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) { return of_runtime(cudaMemGetInfo(free, total)); }
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return of_runtime(cudaMemcpyAsync(address(to), from, bytes, cudaMemcpyHostToDevice, stream));
}
API CUresult cuEventCreate(CUevent* event, unsigned flags) { return of_runtime(cudaEventCreateWithFlags(event, flags)); }
API CUresult cuEventDestroy_v2(CUevent event) { return of_runtime(cudaEventDestroy(event)); }
API CUresult cuEventRecord(CUevent event, CUstream stream) { return of_runtime(cudaEventRecord(event, stream)); }
API CUresult cuEventSynchronize(CUevent event) { return of_runtime(cudaEventSynchronize(event)); }
API CUresult cuEventQuery(CUevent event) { return of_runtime(cudaEventQuery(event)); }
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return of_runtime(cudaStreamWaitEvent(stream, event, flags));
}
API CUresult cuStreamSynchronize(CUstream stream) { return of_runtime(cudaStreamSynchronize(stream)); }

// ---------------------------------------------------------------------------------------------------- looked up by name

namespace {

CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

// The newest version of a function that is here; nullptr if there is none.
void* function(const char* name) {
  for (const char* version : {"_v2", ""})
    if (void* found = dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str())) return found;
  return nullptr;
}

}  // namespace

API CUresult cuGetProcAddress_v2(const char* name, void** result, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  *result = function(name);
  if (status) *status = *result ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *result ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress  // the header's name for the second version; who looks the first one up means this
API CUresult cuGetProcAddress(const char* name, void** result, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, result, version, flags, nullptr);
}

// PyTorch asks for all it might need, and fails at once if one is missing: those that are not here refuse when called.
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** result, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* status) {
  void* found = function(name);
  *result = found ? found : reinterpret_cast<void*>(&unsupported);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
