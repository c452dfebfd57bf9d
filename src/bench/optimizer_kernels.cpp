/// \file optimizer_kernels.cpp
/// The optimiser's passes over the flat buffers, in the order of a step; docs/develop/performance.md has the table of
/// what each must move.

#include <algorithm>
#include <memory>

#include "bench/kernel.hpp"
#include "compress/float_bits.hpp"
#include "compress/reference.hpp"
#include "optim/adam_update.hpp"

namespace onebit::bench {
namespace {

using compress::as_bits;
using compress::as_float;

/// Ranks that the vector is cut for: those whose messages one averages.
constexpr int senders = 4;
/// Numbers of the arrays (value_at).
enum Array { parameters, gradient, momentum, variance, compensated, words };
/// Scale of the messages that were sent before.
constexpr float sent_scale = 0.5f;

/// The variance's element i.
KOKKOS_INLINE_FUNCTION float variance_at(std::size_t i) { return value_at(variance, i) * value_at(variance, i); }

template <class Exec>
void fill_variance(const Exec& exec, const Vector<Exec, float>& v) {
  for_each(
      exec, "OneBit::bench::fill", v.extent(0), KOKKOS_LAMBDA(std::size_t i) { v(i) = variance_at(i); });
  fence(exec, "OneBit::bench::fill");
}

/// Messages of `count` chunks: the scale, and random bits.
template <class Exec>
void fill_messages(const Exec& exec, std::size_t length, const Vector<Exec, std::uint32_t>& messages) {
  for_each(
      exec, "OneBit::bench::fill", messages.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        messages(i) = i % length == 0 ? as_bits(sent_scale) : philox(words, i, 0).word[0];
      });
  fence(exec, "OneBit::bench::fill");
}

template <class T, class View>
std::vector<T> to_vector(const View& view) {
  const auto host = on_host(view);
  return std::vector<T>(host.data(), host.data() + host.extent(0));
}

/// What error feedback holds before the first run: c of array `compensated`, sent with `sent_scale`.
template <class Exec>
compress::Feedback<Exec> earlier_feedback(const Exec& exec, const compress::Compressor<Exec>& compressor, int chunks) {
  const auto feedback = compressor.no_feedback(0, chunks);
  fill(exec, compensated, feedback.c);
  Kokkos::deep_copy(feedback.scales, as_bits(sent_scale));
  return feedback;
}
/// Its residual.
float earlier_residual(std::size_t i) {
  const float c = value_at(compensated, i);
  return c - (c >= 0 ? sent_scale : -sent_scale);
}

/// Whether a compression left the messages and the residual of its vector c, bit for bit.
template <class Exec>
Check check_compression(const Exec& exec, const compress::Compressor<Exec>& compressor,
                        const compress::LayoutRef& layout, const compress::Compression<Exec>& compression) {
  const Vector<Exec, float> residual("OneBit::bench::residual", compression.feedback.c.extent(0));
  compressor.residual(exec, 0, compression.chunks, compression.feedback, residual);
  fence(exec, "OneBit::bench::residual");
  const auto c = to_vector<float>(compression.feedback.c);
  std::vector<float> residual_ref(c.size(), 0.0f);
  const auto messages_ref = compress::compress_ref(layout, compress::Options(), 0, compression.chunks, c, residual_ref);
  const auto messages = on_host(compression.messages);
  const auto residual_host = on_host(residual);
  Check check{static_cast<double>(messages_ref.size() + c.size()), 0};
  for (std::size_t i = 0; i < messages_ref.size(); ++i) check.wrong += messages(i) != messages_ref[i];
  for (std::size_t i = 0; i < c.size(); ++i) check.wrong += as_bits(residual_host(i)) != as_bits(residual_ref[i]);
  return check;
}

/// One element of Adam in double; docs/reference/algorithms.md.
struct AdamRef {
  double x, m, v;
  AdamRef(const optim::AdamUpdate& update, std::size_t i, bool decays, bool updates_moments, double momentum_before)
      : x(value_at(parameters, i)), m(momentum_before), v(variance_at(i)) {
    const double g = update.gradient_factor * static_cast<double>(value_at(gradient, i));
    if (updates_moments) {
      m = update.beta1 * m + update.one_minus_beta1 * g;
      v = update.beta2 * v + update.one_minus_beta2 * g * g;
    }
    const double direction =
        m * update.momentum_correction / (std::sqrt(v * update.variance_correction) + update.epsilon);
    x -= update.lr * (direction + (decays ? update.weight_decay : 0) * x);
  }
};

}  // namespace

template <class Exec>
void optimizer_kernels(const Exec& exec, const config::Input& input, std::size_t d, const Measure& measure) {
  const std::string shape = "d=" + std::to_string(d);
  const double elements = static_cast<double>(d), bits = elements / 8;
  // The first half of the parameters decays.
  TensorTable tensors;
  tensors.add("decaying", {d / 2}, true);
  tensors.add("other", {d - d / 2}, false);
  const auto decaying = [=](std::size_t i) { return i < d / 2; };
  const auto decays = optim::decay_bits<Exec>(tensors);
  optim::StepContext context;
  context.step = input.train.steps;
  context.lr = input.optimizer.lr;
  const optim::AdamUpdate update = optim::make_adam_update(input, context, context.step, 0);
  const auto g = make_array(exec, gradient, d), x = make_array(exec, parameters, d), m = make_array(exec, momentum, d);
  const auto v = make_uninitialized<Exec, float>("OneBit::bench::variance", d);
  fill_variance(exec, v);
  const OrderedSum<Exec> sum(d);

  const auto total = std::make_shared<double>();
  const auto total_is = [=](const auto& term) {
    double right = 0;
    for (std::size_t i = 0; i < d; ++i) right += term(i);
    return compare(
        1, [=](std::size_t) { return *total; }, [=](std::size_t) { return right; });
  };
  measure({"gradient_norm", shape, 4 * elements, 0, [=] { *total = optim::l2_norm(exec, sum, g); },
           [=] {
             *total *= *total;
             return total_is([](std::size_t i) { return std::pow(static_cast<double>(value_at(gradient, i)), 2); });
           }});
  measure({"variance_norm", shape, 4 * elements, 0, [=] { *total = optim::variance_l1(exec, sum, v); },
           [=] { return total_is([](std::size_t i) { return static_cast<double>(variance_at(i)); }); }});

  measure({"adam", shape, 28 * elements, 0, [=] { optim::update_all(exec, update, decays, g, m, v, x); },
           [=] {
             const auto x_host = on_host(x), m_host = on_host(m), v_host = on_host(v);
             const auto ref = [=](std::size_t i) {
               return AdamRef(update, i, decaying(i), true, value_at(momentum, i));
             };
             return compare(d, x_host, [=](std::size_t i) { return ref(i).x; }) +
                    compare(d, m_host, [=](std::size_t i) { return ref(i).m; }) +
                    compare(d, v_host, [=](std::size_t i) { return ref(i).v; });
           }});

  const compress::LayoutRef layout_ref(d, senders, compress::Grouping::vector);
  const compress::Layout layout(d, senders, compress::Grouping::vector);
  const std::shared_ptr<const compress::Compressor<Exec>> compressor =
      compress::make_compressor<Exec>(layout, compress::Options());
  const std::size_t message = compressor->message_words();
  using Words = Vector<Exec, std::uint32_t>;
  const Words messages("OneBit::bench::messages", senders * message);
  const Words averaged("OneBit::bench::averaged", senders * message);
  fill_messages(exec, message, averaged);
  const auto averaged_ref = [=] {
    return compress::decompress_ref(layout_ref, compress::Options(), to_vector<std::uint32_t>(averaged));
  };
  {
    // The vector that is compressed is the momentum, of the last average and g; then it is m.
    const Vector<Exec, const std::uint32_t> last = averaged;
    const auto feedback = earlier_feedback(exec, *compressor, senders);
    const compress::Compression<Exec> moving{
        0, senders, g, feedback, messages, {update.beta1, update.one_minus_beta1, update.gradient_factor, last}};
    const compress::Compression<Exec> worker{0, senders, m, feedback, messages};
    const auto check = [=](const auto& vector) {
      const auto c = on_host(feedback.c);
      return compare(d, c, [&](std::size_t i) { return vector(i) + earlier_residual(i); }) +
             check_compression(exec, *compressor, layout_ref, worker);
    };
    measure({"momentum_compress", shape, 12 * elements + 2 * bits, 0, [=] { compressor->compress(exec, moving); },
             [=] {
               const auto m_ref = averaged_ref();
               return check([&](std::size_t i) {
                 return update.beta1 * static_cast<double>(m_ref[i]) +
                        update.one_minus_beta1 * update.gradient_factor * static_cast<double>(value_at(gradient, i));
               });
             }});
    fill(exec, momentum, m);
    fill(exec, compensated, feedback.c);
    Kokkos::deep_copy(feedback.scales, as_bits(sent_scale));
    measure({"compress", shape, 12 * elements + bits, 0, [=] { compressor->compress(exec, worker); },
             [=] { return check([](std::size_t i) { return static_cast<double>(value_at(momentum, i)); }); }});
    fill(exec, compensated, feedback.c);
    Kokkos::deep_copy(feedback.scales, as_bits(sent_scale));
    measure({"residual_norm", shape, 4 * elements, 0,
             [=] { *total = compressor->residual_l2(exec, 0, senders, feedback); },
             [=] {
               *total *= *total;
               return total_is([](std::size_t i) { return std::pow(static_cast<double>(earlier_residual(i)), 2); });
             }});
  }
  {
    // A server's chunk: what the senders' bits stand for is averaged, compensated and compressed again.
    const std::size_t length = layout.chunk_begins[1];
    const double of_chunk = static_cast<double>(length);
    const Words recompressed("OneBit::bench::recompressed", message);
    fill_messages(exec, message, messages);
    const compress::Compression<Exec> server{
        0, 1, {}, earlier_feedback(exec, *compressor, 1), recompressed, {}, {senders, messages}};
    measure({"average_recompress", std::to_string(senders) + "x" + std::to_string(length),
             8 * of_chunk + (senders + 1) * of_chunk / 8, 0, [=] { compressor->compress(exec, server); },
             [=] {
               const auto c = on_host(server.feedback.c);
               const auto mean_ref = compress::average_ref(layout_ref, compress::Options(), 0, senders,
                                                           to_vector<std::uint32_t>(messages));
               return compare(length, c, [&](std::size_t i) { return mean_ref[i] + earlier_residual(i); }) +
                      check_compression(exec, *compressor, layout_ref, server);
             }});
  }
  fill(exec, parameters, x);
  fill_variance(exec, v);
  const compress::AnyDecoder<Exec> decoder = compressor->decoder(averaged);
  measure({"decompress_update", shape, 12 * elements + bits, 0,
           [=] { optim::update_parameters(exec, update, decays, decoder, v, x); },
           [=] {
             const auto host = on_host(x);
             const auto m_ref = averaged_ref();
             return compare(d, host, [&](std::size_t i) { return AdamRef(update, i, decaying(i), false, m_ref[i]).x; });
           }});
}

#define ONEBIT_INSTANTIATE(Exec) \
  template void optimizer_kernels(const Exec&, const config::Input&, std::size_t, const Measure&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
