#pragma once
/// \file runtime.hpp
/// The runtime of the simulated device, by the names that base/device/gpu.hpp expects of one: streams, events and
/// memory.
///
/// A stream keeps its work, kernels and copies, until somebody waits for it: as late as a device may run it. Meanwhile
/// other streams' work may run before it, in a random order that only events and fences limit.

#include <cstddef>
#include <functional>

namespace onebit::simt {

class StreamWork;
class EventPlace;

/// Appends work to a stream; nullptr is the default stream.
void enqueue(StreamWork* stream, std::function<void()> work);
/// Runs all work of a stream, and what it waits for.
void finish(StreamWork* stream);
/// The same of all streams.
void finish_all();

/// Device memory, filled with NaN, between guards.
void* allocate(std::size_t bytes);
/// Waits for all streams, as a device's runtime does, and checks the guards.
void release(void* memory);
/// Aborts if a kernel wrote beside an allocation.
void check_guards();

}  // namespace onebit::simt

using simtError_t = int;
using simtStream_t = onebit::simt::StreamWork*;
using simtEvent_t = onebit::simt::EventPlace*;
inline constexpr simtError_t simtSuccess = 0, simtErrorNotReady = 600;
inline constexpr unsigned simtStreamNonBlocking = 1, simtEventDisableTiming = 2, simtEventBlockingSync = 1;

struct simtDeviceProp {
  char name[32] = "simulated device";
  struct {
    char bytes[16] = {};
  } uuid;
  int major = 8, minor = 0;
};

const char* simtGetErrorString(simtError_t error);
simtError_t simtPeekAtLastError();
simtError_t simtGetDeviceCount(int* count);
simtError_t simtGetDevice(int* device);
simtError_t simtSetDevice(int device);
simtError_t simtGetDeviceProperties(simtDeviceProp* properties, int device);
simtError_t simtMemGetInfo(std::size_t* free, std::size_t* total);
simtError_t simtStreamCreateWithFlags(simtStream_t* stream, unsigned flags);
simtError_t simtStreamDestroy(simtStream_t stream);
simtError_t simtStreamQuery(simtStream_t stream);
simtError_t simtStreamWaitEvent(simtStream_t stream, simtEvent_t event, unsigned flags);
simtError_t simtEventCreateWithFlags(simtEvent_t* event, unsigned flags);
simtError_t simtEventDestroy(simtEvent_t event);
simtError_t simtEventRecord(simtEvent_t event, simtStream_t stream);
simtError_t simtEventQuery(simtEvent_t event);
simtError_t simtEventSynchronize(simtEvent_t event);
