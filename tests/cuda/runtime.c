/* A CUDA runtime without a GPU, for the host backends of a build with CUDA: Kokkos starts its device in every such
   program. Memory is the host's, and a kernel does nothing. */
#include <cuda_runtime_api.h>
#undef cudaGetDeviceProperties
#include <stdlib.h>
#include <string.h>

static char some_handle[64]; /* what streams, events and modules point to */

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  (void)device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  (void)device;
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "no GPU");
  properties->major = ARCHITECTURE / 10;
  properties->minor = ARCHITECTURE % 10;
  properties->warpSize = 32;
  properties->totalGlobalMem = (size_t)1 << 33;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 49152;
  properties->sharedMemPerMultiprocessor = 65536;
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->multiProcessorCount = 1;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->concurrentKernels = properties->unifiedAddressing = properties->managedMemory = 1;
  return cudaSuccess;
}

static cudaError_t allocate(void** address, size_t bytes) {
  *address = calloc(1, bytes + 1);
  return *address ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMalloc(void** address, size_t bytes) { return allocate(address, bytes); }
cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(address, bytes);
}
cudaError_t cudaMallocHost(void** address, size_t bytes) { return allocate(address, bytes); }
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(address, bytes);
}
cudaError_t cudaFree(void* address) {
  free(address);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
  free(address);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* all) {
  *available = *all = (size_t)1 << 33;
  return cudaSuccess;
}

/* The first number that comes from the device is the architecture for which Kokkos finds its kernels compiled. */
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  static int asked = 0;
  (void)kind;
  if (!asked && bytes == sizeof(int)) {
    const int architecture = 10 * ARCHITECTURE;
    asked = 1;
    from = &architecture;
    memcpy(to, from, bytes);
    return cudaSuccess;
  }
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)stream;
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  memset(address, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  (void)stream;
  return cudaMemset(address, value, bytes);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* address) {
  (void)address;
  memset(attributes, 0, sizeof *attributes);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* function) {
  (void)function;
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = ARCHITECTURE;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  (void)error;
  return "an error of no GPU";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, enum cudaChannelFormatKind kind) {
  const struct cudaChannelFormatDesc description = {x, y, z, w, kind};
  return description;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = (cudaStream_t)some_handle;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  (void)flags;
  return cudaStreamCreate(stream);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = (cudaEvent_t)some_handle;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  return cudaEventCreate(event);
}
void** __cudaRegisterFatBinary(void* binary) {
  (void)binary;
  return (void**)some_handle;
}
