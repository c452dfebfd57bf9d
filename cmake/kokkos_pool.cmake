# Warns if the Kokkos in Kokkos_DIR allocates the memory of GPUs by cudaMallocAsync, as 4.2 to 4.4 do by default, or by
# hipMallocAsync, as later ones do before ROCm 7.
find_file(onebit_kokkos_config KokkosCore_config.h PATHS ${Kokkos_DIR}/../../../include PATH_SUFFIXES kokkos
          NO_DEFAULT_PATH NO_CACHE)
if(onebit_kokkos_config)
  file(STRINGS ${onebit_kokkos_config} onebit_pool REGEX "^#define KOKKOS_ENABLE_IMPL_(CUDA|HIP)_MALLOC_ASYNC")
endif()
if(onebit_pool)
  string(REGEX MATCH "IMPL_(CUDA|HIP)_MALLOC_ASYNC" onebit_pool "${onebit_pool}")
  string(TOLOWER ${CMAKE_MATCH_1} onebit_runtime)
  message(WARNING "This Kokkos allocates by ${onebit_runtime}MallocAsync, whose memory other processes cannot map. OneBit "
                  "will not hand it to MPI: exchanges go through the host, unless comm.transport is nccl. To change that, "
                  "build Kokkos with -DKokkos_ENABLE_${onebit_pool}=OFF (Spack: kokkos~alloc_async).")
endif()
