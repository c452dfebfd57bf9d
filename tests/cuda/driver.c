/* What Kokkos 5 asks of the CUDA driver when it starts, answered without a GPU (runtime.c). */
#include <cuda.h>

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  (void)stream;
  *context = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  (void)context;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
