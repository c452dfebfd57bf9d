#include "linalg/vendor/onednn.hpp"

#ifdef ONEBIT_WITH_ONEDNN
#include <map>
#include <tuple>

#include "linalg/vendor/onednn_engine.hpp"
#endif

namespace onebit::linalg {

#ifdef ONEBIT_WITH_ONEDNN
namespace {

/// Whether the processor has these instructions and ONEDNN_MAX_CPU_ISA allows them.
bool has(dnnl::cpu_isa instructions) {
  const auto wanted = static_cast<unsigned>(instructions);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

/// What oneDNN prepares for products of one shape.
struct Plan {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul product;
};

/// op of a row-major matrix; m rows and n columns are those of the result.
dnnl::memory::desc description(dnnl::memory::data_type type, Transpose op, int m, int n, std::size_t row_stride) {
  const auto stride = static_cast<dnnl::memory::dim>(row_stride);
  return {{m, n}, type, op == Transpose::yes ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

Plan make_plan(Transpose op_a, Transpose op_b, int m, int n, int k, std::size_t a_stride, std::size_t b_stride,
               float beta, std::size_t c_stride, dnnl::memory::data_type type_of_c) {
  constexpr auto bf16 = dnnl::memory::data_type::bf16;
  const auto a = description(bf16, op_a, m, k, a_stride), b = description(bf16, op_b, k, n, b_stride);
  const auto c = description(type_of_c, Transpose::no, m, n, c_stride);
  dnnl::post_ops steps;
  if (beta != 0) steps.append_sum(beta);
  dnnl::primitive_attr attributes = with_own_scratch();
  attributes.set_post_ops(steps);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc plan(engine(), a, b, c, attributes);
#else
  const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(a, b, c), attributes, engine());
#endif
  return {a, b, c, plan.scratchpad_desc(), dnnl::matmul(plan)};
}

template <class T>
void product_of_rounded(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                        Rows<const std::uint16_t> b, float beta, Rows<T> c, dnnl::memory::data_type type_of_c) {
  using Key = std::tuple<Transpose, Transpose, int, int, int, std::size_t, std::size_t, float, std::size_t>;
  thread_local std::map<Key, Plan> plans;  // for each T
  const Key key{op_a, op_b, m, n, k, a.row_stride, b.row_stride, beta, c.row_stride};
  auto found = plans.find(key);
  if (found == plans.end())
    found =
        plans.emplace(key, make_plan(op_a, op_b, m, n, k, a.row_stride, b.row_stride, beta, c.row_stride, type_of_c))
            .first;
  const Plan& plan = found->second;
  plan.product.execute(stream(), {{DNNL_ARG_SRC, memory_of(plan.a, a.data)},
                                  {DNNL_ARG_WEIGHTS, memory_of(plan.b, b.data)},
                                  {DNNL_ARG_DST, memory_of(plan.c, c.data)},
                                  {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
}

char letter(Transpose op) { return op == Transpose::yes ? 'T' : 'N'; }
dnnl_dim_t stride(std::size_t row_stride) { return static_cast<dnnl_dim_t>(row_stride); }

}  // namespace

bool onednn_is_faster() {
  static const bool faster = has(dnnl::cpu_isa::avx512_core);
  return faster;
}

bool onednn_has_bfloat16() { return has(dnnl::cpu_isa::avx512_core_bf16); }

std::string onednn_version() {
  const dnnl::version_t& version = *dnnl::version();
  return "oneDNN-" + std::to_string(version.major) + '.' + std::to_string(version.minor) + '.' +
         std::to_string(version.patch);
}

void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, float alpha, Rows<const float> a,
                    Rows<const float> b, float beta, Rows<float> c) {
  dnnl::error::wrap_c_api(dnnl_sgemm(letter(op_a), letter(op_b), m, n, k, alpha, a.data, stride(a.row_stride), b.data,
                                     stride(b.row_stride), beta, c.data, stride(c.row_stride)),
                          "a product in float failed");
}

void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                    Rows<const std::uint16_t> b, float beta, Rows<float> c) {
  product_of_rounded(op_a, op_b, m, n, k, a, b, beta, c, dnnl::memory::data_type::f32);
}

void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                    Rows<const std::uint16_t> b, float beta, Rows<std::uint16_t> c) {
  product_of_rounded(op_a, op_b, m, n, k, a, b, beta, c, dnnl::memory::data_type::bf16);
}

void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::int8_t> a,
                    Rows<const std::int8_t> b, Rows<std::int32_t> c) {
  const std::int32_t no_offset = 0;
  dnnl::error::wrap_c_api(
      dnnl_gemm_s8s8s32(letter(op_a), letter(op_b), 'F', m, n, k, 1, a.data, stride(a.row_stride), 0, b.data,
                        stride(b.row_stride), 0, 0, c.data, stride(c.row_stride), &no_offset),
      "a product in 8 bits failed");
}
#else
bool onednn_is_faster() { return false; }
bool onednn_has_bfloat16() { return false; }
std::string onednn_version() { return ""; }
void onednn_product(Transpose, Transpose, int, int, int, float, Rows<const float>, Rows<const float>, float,
                    Rows<float>) {}
void onednn_product(Transpose, Transpose, int, int, int, Rows<const std::uint16_t>, Rows<const std::uint16_t>, float,
                    Rows<float>) {}
void onednn_product(Transpose, Transpose, int, int, int, Rows<const std::uint16_t>, Rows<const std::uint16_t>, float,
                    Rows<std::uint16_t>) {}
void onednn_product(Transpose, Transpose, int, int, int, Rows<const std::int8_t>, Rows<const std::int8_t>,
                    Rows<std::int32_t>) {}
#endif

}  // namespace onebit::linalg
