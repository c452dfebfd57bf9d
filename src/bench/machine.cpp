/// \file machine.cpp
/// The machine: McCalpin's copy and triad (STREAM), and multiply-adds without and with a BLAS.

#include <cmath>
#include <memory>
#include <utility>

#include "bench/bench.hpp"
#include "bench/kernels/kernel.hpp"
#include "comm/transport/nccl.hpp"
#include "linalg/matrix_product.hpp"
#include "workload/transformer.hpp"

namespace onebit::bench {
namespace {

/// Elements of an array of copy and triad. Three arrays have 384 MiB on a host, 768 MiB on a device.
template <class Exec>
constexpr std::size_t stream_length = is_host<Exec> ? std::size_t{1} << 25 : std::size_t{1} << 26;

/// Operand of a multiply-add on the host: a vector register. An array of floats that the compiler keeps in memory would
/// measure the cache.
#if defined(__AVX512F__)
constexpr int register_floats = 16;
#else
constexpr int register_floats = 8;
#endif
typedef float HostRegister __attribute__((vector_size(register_floats * sizeof(float))));
/// Floats of a multiply-add, and multiply-adds of each chain in a run.
template <class Exec>
constexpr int floats_of_register = is_host<Exec> ? register_floats : 1;
template <class Exec>
constexpr int chain_length = is_host<Exec> ? 1 << 18 : 1 << 12;

/// Independent chains a ← a x + y: enough to occupy two units with a latency of up to five cycles.
constexpr int chains = 10;
constexpr float fma_factor = 0.5f, fma_term = 0.25f;

/// The work of one thread on the host. Device code has no vector types.
struct MultiplyAdd {
  int repetitions;
  float* sums;  ///< (tasks) keeps the compiler from removing the loop

  void operator()(int task) const {
    HostRegister chain[chains];
    for (int k = 0; k < chains; ++k) chain[k] = HostRegister{} + static_cast<float>(k);
    for (int repetition = 0; repetition < repetitions; ++repetition) {
#ifndef __CUDACC__  // whose front end does not know it
#pragma GCC unroll 10
#endif
      for (int k = 0; k < chains; ++k) chain[k] = chain[k] * fma_factor + fma_term;
    }
    float sum = 0;
    for (int k = 0; k < chains; ++k) sum += chain[k][0];
    sums[task] = sum;
  }
};

/// `repetitions` multiply-adds of each chain in each task.
template <class Exec>
void multiply_add(const Exec& exec, int repetitions, const Vector<Exec, float>& sums) {
  const Kokkos::RangePolicy<Exec> tasks(exec, 0, sums.extent_int(0));
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for("OneBit::bench::fma", tasks, MultiplyAdd{repetitions, sums.data()});
  } else {
    Kokkos::parallel_for(
        "OneBit::bench::fma", tasks, KOKKOS_LAMBDA(int task) {
          float chain[chains];
          for (int k = 0; k < chains; ++k) chain[k] = static_cast<float>(k);
          for (int repetition = 0; repetition < repetitions; ++repetition)
            for (int k = 0; k < chains; ++k) chain[k] = std::fma(chain[k], fma_factor, fma_term);
          float sum = 0;
          for (int k = 0; k < chains; ++k) sum += chain[k];
          sums(task) = sum;
        });
  }
}

template <class Exec>
void copy(const Exec& exec, const Vector<Exec, float>& a, const Vector<Exec, float>& b) {
  for_each(
      exec, "OneBit::bench::copy", a.extent(0), KOKKOS_LAMBDA(std::size_t i) { a(i) = b(i); });
}

template <class Exec>
void triad(const Exec& exec, const Vector<Exec, float>& a, const Vector<Exec, float>& b, const Vector<Exec, float>& c) {
  for_each(
      exec, "OneBit::bench::triad", a.extent(0), KOKKOS_LAMBDA(std::size_t i) { a(i) = b(i) + 0.5f * c(i); });
}

}  // namespace

template <class Exec>
void machine_kernels(const Exec& exec, const config::Input& input, const Measure& measure) {
  const std::size_t n = stream_length<Exec>;
  const double bytes = sizeof(float) * static_cast<double>(n);
  const std::string length = "n=" + std::to_string(n);
  const auto a = make_array(exec, 0, n), b = make_array(exec, 1, n), c = make_array(exec, 2, n);
  const auto compare_a = [=](const auto& reference) {
    const auto host = on_host(a);
    constexpr std::size_t stride = 61;  // prime: visits every place of a vector register and of a page
    return compare(
        n / stride, [&](std::size_t i) { return host(stride * i); },
        [&](std::size_t i) { return reference(stride * i); });
  };
  measure({"triad", length, 3 * bytes, 2.0 * static_cast<double>(n), [=] { triad(exec, a, b, c); },
           [=] { return compare_a([](std::size_t i) { return value_at(1, i) + 0.5 * value_at(2, i); }); }});
  measure({"copy", length, 2 * bytes, 0, [=] { copy(exec, a, b); },
           [=] { return compare_a([](std::size_t i) { return value_at(1, i); }); }});

  constexpr int floats = floats_of_register<Exec>, repetitions = chain_length<Exec>;
  const int tasks = 8 * concurrency(exec);
  const auto sums = make_uninitialized<Exec, float>("OneBit::bench::sums", tasks);
  measure({"fma", std::to_string(tasks) + "x" + std::to_string(chains * floats), 0,
           2.0 * tasks * chains * floats * repetitions, [=] { multiply_add(exec, repetitions, sums); },
           [=] {
             // a ← a x + y ends at y / (1 − x).
             const auto host = on_host(sums);
             return compare(tasks, host, [](std::size_t) { return chains * fma_term / (1.0 - fma_factor); });
           }});

  const int edge = is_host<Exec> ? 2048 : 8192;
  const std::size_t size = static_cast<std::size_t>(edge) * edge;
  const auto p = make_array(exec, 0, size), q = make_array(exec, 1, size), product = make_array(exec, 2, size);
  const auto matrix = [=](const auto& array) { return MatrixRef<Exec, float>(array.data(), edge, edge); };
  // The kernel is kept and measured again beside others, so it owns its product.
  const auto gemm = [&](const std::string& name, Precision precision,
                        linalg::MatrixProduct<Exec, float> product_of_precision) {
    const auto multiply = std::make_shared<linalg::MatrixProduct<Exec, float>>(std::move(product_of_precision));
    const auto run = [=, instance = exec] {
      (*multiply)(instance, linalg::Transpose::no, linalg::Transpose::yes, 1.0f, matrix(p), matrix(q), 0.0f,
                  matrix(product));
    };
    const auto check = [=] {
      const auto reference = [&](std::size_t i, std::size_t j) {
        double sum = 0;
        for (int l = 0; l < edge; ++l)
          sum += static_cast<double>(factor(precision, value_at(0, i * edge + l))) *
                 factor(precision, value_at(1, j * edge + l));
        return sum;
      };
      return compare_some(matrix(product), 1000, reference, product_tolerance(precision));
    };
    const std::string length = std::to_string(edge), shape = length + "x" + length + "x" + length;
    const double elements = static_cast<double>(size);
    measure_products(measure, precision, name, shape, 3.0 * sizeof(float) * elements, 2.0 * edge * elements, run,
                     check);
  };
  gemm("gemm", Precision::fp32, linalg::MatrixProduct<Exec, float>());
  const Precision precision = input.model.precision;
  if (precision != Precision::fp32)
    gemm("gemm_" + to_string(precision), precision, workload::make_product<Exec>(input));
}

#define ONEBIT_INSTANTIATE(Exec) template void machine_kernels(const Exec&, const config::Input&, const Measure&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

std::string features() {
  const std::string nccl = comm::nccl_version();
  std::string text = "transports: host device" + (nccl.empty() ? "" : " nccl (" + nccl + ")") + "\n";
#ifdef ONEBIT_GPU
  text += std::string("products of ") + gpu::backend + ": " + linalg::gpu_product_library() + "\n";
#endif
#define ONEBIT_PRECISIONS(Exec)                                                 \
  text += std::string("precisions of ") + BackendName<Exec>::value + ": fp32" + \
          (linalg::missing<Exec>(Precision::tf32).empty() ? " tf32" : "") +     \
          (linalg::missing<Exec>(Precision::bf16).empty() ? " bf16" : "") + "\n";
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_PRECISIONS)
  return text;
}

}  // namespace onebit::bench
