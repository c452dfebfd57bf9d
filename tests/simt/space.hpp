#pragma once
/// \file space.hpp
/// The simulated device as a memory space and an execution space of Kokkos 3.4. Host code may not read its memory.

#include <Kokkos_Core.hpp>

#include <cstring>
#include <string>

#include "simt/runtime.hpp"
#include "simt/team.hpp"

namespace onebit::simt {

class Exec;

class Memory {
public:
  using memory_space = Memory;
  using execution_space = Exec;
  using device_type = Kokkos::Device<Exec, Memory>;
  using size_type = std::size_t;

  static constexpr const char* name() { return "Simt"; }
  void* allocate(const char* label, std::size_t bytes, std::size_t logical_bytes = 0) const;
  void deallocate(const char* label, void* memory, std::size_t bytes, std::size_t logical_bytes = 0) const;
};

/// An instance: a stream.
class Exec {
public:
  using execution_space = Exec;
  using memory_space = Memory;
  using device_type = Kokkos::Device<Exec, Memory>;
  using size_type = int;
  using array_layout = Kokkos::LayoutRight;
  using scratch_memory_space = Kokkos::ScratchMemorySpace<Exec>;

  Exec() = default;
  explicit Exec(simtStream_t stream) : m_stream(stream) {}

  static const char* name() { return "Simt"; }
  static int in_parallel() { return in_kernel() ? 1 : 0; }
  static bool impl_is_initialized() { return true; }
  static int concurrency() { return 1; }
  static void impl_static_fence() { finish_all(); }
  void fence() const { finish(m_stream); }
  std::uint32_t impl_instance_id() const noexcept { return 0; }

  simtStream_t simt_stream() const { return m_stream; }
  int simt_device() const { return 0; }
  const simtDeviceProp& simt_device_prop() const {
    static const simtDeviceProp properties;
    return properties;
  }

private:
  simtStream_t m_stream = nullptr;
};

/// The copies of Kokkos::deep_copy. The asynchronous one reads and writes as late as Kokkos allows: at the fence.
inline void copy(void* to, const void* from, std::size_t bytes) {
  finish_all();
  std::memcpy(to, from, bytes);
}
inline void copy(const Exec& exec, void* to, const void* from, std::size_t bytes) {
  enqueue(exec.simt_stream(), [=] { std::memcpy(to, from, bytes); });
}

}  // namespace onebit::simt

namespace Kokkos {
namespace Tools::Experimental {
template <>
struct DeviceTypeTraits<onebit::simt::Exec> {
  static constexpr DeviceType id = DeviceType::Cuda;  // tools know no other device of this kind
};
}  // namespace Tools::Experimental

namespace Impl {
template <>
struct MemorySpaceAccess<HostSpace, onebit::simt::Memory> {
  enum : bool { assignable = false, accessible = false, deepcopy = true };
};
template <>
struct MemorySpaceAccess<onebit::simt::Memory, HostSpace> {
  enum : bool { assignable = false, accessible = false, deepcopy = true };
};
/// Kernels run on the host. What is no kernel may not read device memory.
template <>
struct verify_space<HostSpace, onebit::simt::Memory, false> {
  static void check() {
    if (!onebit::simt::in_kernel()) onebit::simt::fail("host code reads or writes device memory");
  }
};

#define ONEBIT_SIMT_COPY(To, From)                                                                   \
  template <class Instance>                                                                          \
  struct DeepCopy<To, From, Instance> {                                                              \
    DeepCopy(void* to, const void* from, std::size_t bytes) { onebit::simt::copy(to, from, bytes); } \
    DeepCopy(const Instance& exec, void* to, const void* from, std::size_t bytes) {                  \
      if constexpr (std::is_same_v<Instance, onebit::simt::Exec>) {                                  \
        onebit::simt::copy(exec, to, from, bytes);                                                   \
      } else {                                                                                       \
        exec.fence();                                                                                \
        onebit::simt::copy(to, from, bytes);                                                         \
      }                                                                                              \
    }                                                                                                \
  };
ONEBIT_SIMT_COPY(onebit::simt::Memory, HostSpace)
ONEBIT_SIMT_COPY(HostSpace, onebit::simt::Memory)
ONEBIT_SIMT_COPY(onebit::simt::Memory, onebit::simt::Memory)
#undef ONEBIT_SIMT_COPY

template <>
class SharedAllocationRecord<onebit::simt::Memory, void> : public SharedAllocationRecord<void, void> {
  using RecordBase = SharedAllocationRecord<void, void>;
  static void free_record(RecordBase* record) { delete static_cast<SharedAllocationRecord*>(record); }

public:
  static SharedAllocationRecord* allocate(const onebit::simt::Memory& memory, const std::string& label,
                                          std::size_t bytes) {
    return new SharedAllocationRecord(memory, label, bytes);
  }
  std::string get_label() const override { return m_label; }

protected:
  SharedAllocationRecord(const onebit::simt::Memory& memory, const std::string& label, std::size_t bytes,
                         RecordBase::function_type free = &free_record)
      : RecordBase(static_cast<SharedAllocationHeader*>(
                       memory.allocate(label.c_str(), bytes + sizeof(SharedAllocationHeader), bytes)),
                   bytes + sizeof(SharedAllocationHeader), free),
        m_label(label) {
    RecordBase::m_alloc_ptr->m_record = this;
  }
  SharedAllocationRecord() = default;
  ~SharedAllocationRecord() {
    const std::size_t bytes = RecordBase::m_alloc_size;
    m_memory.deallocate(m_label.c_str(), RecordBase::m_alloc_ptr, bytes, bytes - sizeof(SharedAllocationHeader));
  }

private:
  onebit::simt::Memory m_memory;
  std::string m_label;
};
}  // namespace Impl
}  // namespace Kokkos
