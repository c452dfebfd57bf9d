/// \file nn_attention_test.cpp
/// Attention against the plain loops of nn/reference.hpp, in float and double, and its gradient in double against
/// central differences. What a device launches is tested on every backend, the host's with one lane a warp.

#include <limits>

#include "base/error.hpp"
#include "nn/attention/attention.hpp"
#include "nn/attention/flash_attention.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

using test::DeviceArray;
using test::gradient_error;
using test::in_double;
using test::random_array;
using test::relative_error;
using test::weighted_sum;

/// Relative error that rounding may make.
template <class Real>
constexpr double rounding = std::is_same_v<Real, float> ? 2e-6 : 1e-14;
constexpr double gradient_tolerance = 1e-7;

const DropoutKey key{11, 5, 1000};

/// Which code is tested: what this backend takes, or the launches of a device.
enum class Code { of_backend, of_device };

template <class Exec, class Real>
struct AttentionCase {
  int batch, heads, sequence, width;
  bool causal;
  Real probability;
  Array<Real> qkv, d_context;
  Precision precision = Precision::fp32;

  AttentionCase(int batch_, int heads_, int sequence_, int width_, bool causal_, Real probability_)
      : batch(batch_),
        heads(heads_),
        sequence(sequence_),
        width(width_),
        causal(causal_),
        probability(probability_),
        qkv(random_array<Real>(batch * sequence, 3 * heads * width, 1)),
        d_context(random_array<Real>(batch * sequence, heads * width, 2)) {}

  Array<double> factors() const {
    Array<double> factors(batch * heads * sequence, sequence);
    for (int r = 0; r < factors.rows; ++r)
      for (int j = 0; j < sequence; ++j) {
        const int query = r % sequence, head = r / sequence % heads, sample = r / sequence / heads;
        factors(r, j) = dropout_factor_ref<Real>(probability, key, 2, sample, query, head, sequence, j);
      }
    return factors;
  }

  struct Result {
    Array<double> context, d_qkv;
  };
  Result run(const Exec& exec, Code code) const {
    const int rows = batch * sequence, channels = heads * width;
    const Attention<Exec, Real> attention{batch, heads, sequence, channels, causal, precision};
    const Dropout<Real> dropout(probability, key, 2, sequence);
    const DeviceArray<Exec, Real> x(qkv), dy(d_context), context(rows, channels), dx(rows, 3 * channels);
    const Vector<Exec, Real> log_sums("log_sums", rows * heads);
    if (code == Code::of_backend) {
      const Vector<Exec, Real> scratch("scratch", attention.scratch_size(exec));
      attention.forward(exec, x.matrix(), dropout, log_sums, scratch, context.matrix());
      attention.backward(exec, x.matrix(), context.matrix(), dy.matrix(), dropout, log_sums, scratch, dx.matrix());
    } else {
      const Vector<Exec, Real> scratch("scratch", flash::scratch_size(attention));
      flash::forward<Exec, Real>(exec, attention, x.matrix(), dropout, log_sums, context.matrix());
      flash::backward<Exec, Real>(exec, attention, x.matrix(), context.matrix(), dy.matrix(), dropout, log_sums,
                                  scratch, dx.matrix());
    }
    return {context.array(), dx.array()};
  }
  Result reference() const {
    const Array<double> x = in_double(qkv), masks = factors();
    return {attention_ref(x, batch, heads, sequence, causal, masks),
            attention_backward_ref(x, batch, heads, sequence, causal, masks, in_double(d_context))};
  }
};

template <class Exec>
class AttentionOn : public ::testing::Test {
protected:
  Exec exec;

  template <class Real>
  void expect_equal_to_reference(Code code) const {
    // Around the sizes of vectors, tiles, teams and blocks of dropout.
    constexpr struct {
      int batch, heads, sequence, width;
    } shapes[] = {{1, 1, 1, 1},   {2, 3, 5, 4},    {1, 2, 33, 16},  {2, 1, 130, 8},
                  {1, 2, 66, 64}, {1, 1, 150, 33}, {1, 1, 19, 128}, {1, 1, 601, 8}};
    for (const auto& shape : shapes)
      for (const bool causal : {false, true})
        for (const Real probability : {Real(0), Real(0.3)}) {
          SCOPED_TRACE(::testing::Message() << "T " << shape.sequence << " D " << shape.width << " causal " << causal
                                            << " dropout " << probability);
          const AttentionCase<Exec, Real> attention(shape.batch, shape.heads, shape.sequence, shape.width, causal,
                                                    probability);
          const auto found = attention.run(exec, code), expected = attention.reference();
          EXPECT_LE(relative_error(found.context, expected.context), rounding<Real>);
          EXPECT_LE(relative_error(found.d_qkv, expected.d_qkv), rounding<Real> * 3);
        }
  }
};
TYPED_TEST_SUITE(AttentionOn, test::Backends, test::BackendNames);

TYPED_TEST(AttentionOn, equals_reference) {
  this->template expect_equal_to_reference<float>(Code::of_backend);
  this->template expect_equal_to_reference<double>(Code::of_backend);
}

TYPED_TEST(AttentionOn, launches_of_a_device_equal_reference) {
  this->template expect_equal_to_reference<float>(Code::of_device);
  this->template expect_equal_to_reference<double>(Code::of_device);
}

TYPED_TEST(AttentionOn, gradient) {
  for (const Code code : {Code::of_backend, Code::of_device})
    for (const bool causal : {false, true})
      for (const double probability : {0.0, 0.3}) {
        AttentionCase<TypeParam, double> attention(2, 2, 19, 4, causal, probability);
        const auto gradient = attention.run(this->exec, code);
        const auto f = [&] { return weighted_sum(attention.d_context, attention.run(this->exec, code).context); };
        EXPECT_LE(gradient_error(f, attention.qkv.values, gradient.d_qkv.values), gradient_tolerance);
      }
}

// tf32 rounds each factor by up to 2^-11 of itself; that is seen, and no more than that.
TYPED_TEST(AttentionOn, tensor_cores_round_factors_to_tf32) {
  for (const Precision precision : {Precision::tf32, Precision::bf16})
    for (const bool causal : {false, true}) {
      AttentionCase<TypeParam, float> attention(2, 2, 70, 64, causal, 0.1f);
      attention.precision = precision;
      const auto found = attention.run(this->exec, Code::of_device), expected = attention.reference();
      EXPECT_LE(relative_error(found.context, expected.context), 3e-3);
      EXPECT_GE(relative_error(found.context, expected.context), 3e-5);
      EXPECT_LE(relative_error(found.d_qkv, expected.d_qkv), 3e-3);
      EXPECT_GE(relative_error(found.d_qkv, expected.d_qkv), 3e-5);
    }
}

// A NaN or an infinite score must reach the loss, where the run finds it.
TYPED_TEST(AttentionOn, passes_nan_on) {
  for (const Code code : {Code::of_backend, Code::of_device})
    for (const Precision precision : {Precision::fp32, Precision::tf32}) {
      AttentionCase<TypeParam, float> attention(1, 1, 40, 8, true, 0);
      attention.precision = precision;
      attention.qkv(20, 8) = std::numeric_limits<float>::quiet_NaN();  // of a key
      const auto context = attention.run(this->exec, code).context;
      EXPECT_FALSE(std::isnan(context(19, 0)));
      EXPECT_TRUE(std::isnan(context(20, 0)));
      EXPECT_TRUE(std::isnan(context(39, 0)));
    }
}

TEST(FlashAttention, refuses_wide_heads) {
  const auto with_width = [](int width) {
    return flash::scratch_size(Attention<HostExec, float>{1, 2, 4, 2 * width, false});
  };
  EXPECT_EQ(with_width(128), 8u);
  EXPECT_THROW(with_width(129), InputError);
}

TEST(FlashAttention, rounds_to_tf32_as_hardware_does) {
  EXPECT_EQ(flash::as_factor<true>(1 + 0x1p-11f), 1 + 0x1p-10f);  // ties away from zero
  EXPECT_EQ(flash::as_factor<true>(-1 - 0x1p-11f), -1 - 0x1p-10f);
  EXPECT_EQ(flash::as_factor<true>(1 + 0x1p-12f), 1.0f);
  EXPECT_EQ(flash::as_factor<true>(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  std::uint32_t bits = 0x7FFFFFFFu;  // the NaN that CUDA makes
  float nan;
  std::memcpy(&nan, &bits, sizeof nan);
  EXPECT_TRUE(std::isnan(flash::as_factor<true>(nan)));
  EXPECT_EQ(flash::as_factor<false>(1 + 0x1p-23f), 1 + 0x1p-23f);
}

}  // namespace
}  // namespace onebit::nn
