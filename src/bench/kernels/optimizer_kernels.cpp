/// \file optimizer_kernels.cpp
/// The optimiser's passes over the flat buffers, in the order of a step; docs/develop/performance/kernels.md has the
/// table of what each must move.

#include "base/float_bits.hpp"
#include "bench/kernels/kernel.hpp"
#include "compress/reference.hpp"
#include "optim/adam_update.hpp"

namespace onebit::bench {
namespace {

/// Number of ranks: of chunks of a vector, and of messages that a server averages.
constexpr int senders = 4;
/// Numbers of the arrays for `value_at`.
enum Array { parameters, gradient, momentum, variance, compensated, words };
/// Scale of the earlier messages.
constexpr float sent_scale = 0.5f;

/// Element i of the variance.
KOKKOS_INLINE_FUNCTION float variance_at(std::size_t i) { return value_at(variance, i) * value_at(variance, i); }

template <class Exec>
Vector<Exec, float> make_variance(const Exec& exec, std::size_t d) {
  const auto v = make_uninitialized<Exec, float>("OneBit::bench::variance", d);
  for_each(
      exec, "OneBit::bench::fill", d, KOKKOS_LAMBDA(std::size_t i) { v(i) = variance_at(i); });
  fence(exec, "OneBit::bench::fill");
  return v;
}

/// Messages of `length` words: the scale, and random bits.
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

/// Error feedback before a run: c is array `compensated`, sent with `sent_scale`.
template <class Exec>
void fill_feedback(const Exec& exec, const compress::Feedback<Exec>& feedback) {
  fill(exec, compensated, feedback.c);
  Kokkos::deep_copy(feedback.scales, as_bits(sent_scale));
}
/// The residual of this error feedback.
float earlier_residual(std::size_t i) {
  const float c = value_at(compensated, i);
  return c - (c >= 0 ? sent_scale : -sent_scale);
}

/// Compares the messages and the residual of a compression of c with those of the reference implementation, bit for
/// bit.
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

/// One element of Adam in double; docs/reference/algorithms/README.md.
struct AdamRef {
  double x, m, v;
  AdamRef(const optim::AdamUpdate& update, std::size_t i, double weight_decay, bool updates_moments,
          double momentum_before)
      : x(value_at(parameters, i)), m(momentum_before), v(variance_at(i)) {
    const double g = update.gradient_factor * static_cast<double>(value_at(gradient, i));
    if (updates_moments) {
      m = update.beta1 * m + update.one_minus_beta1 * g;
      v = update.beta2 * v + update.one_minus_beta2 * g * g;
    }
    const double direction =
        m * update.momentum_correction / (std::sqrt(v * update.variance_correction) + update.epsilon);
    x -= update.lr * (direction + weight_decay * x);
  }
};

/// The update of the last step.
optim::AdamUpdate last_update(const config::Input& input) {
  optim::StepContext context;
  context.step = input.train.steps;
  context.lr = input.optimizer.lr;
  return optim::make_adam_update(input, context, 0, context.step, context.step);
}

/// λ of element i.
double weight_decay(const config::Input& input, std::size_t i, std::size_t d) {
  return i < d / 2 ? static_cast<float>(input.optimizer.weight_decay) : 0;
}
template <class Exec>
optim::Rates<Exec> make_rates(config::Input input, std::size_t d) {
  input.optimizer.groups.clear();  // their tensors are a model's
  TensorTable tensors;
  tensors.add("decaying", {d / 2}, true);
  tensors.add("other", {d - d / 2}, false);
  return {input, tensors};
}

std::string shape_of(std::size_t d) { return "d=" + std::to_string(d); }
double square(double value) { return value * value; }

/// Measures a sum over d elements. \param flop of an element \param run returns the sum \param term (i) the terms in
/// double
template <class Run, class Term>
void measure_sum(const Measure& measure, const char* name, std::size_t d, double flop, const Run& run,
                 const Term& term) {
  double total = 0;
  const double elements = static_cast<double>(d);
  measure({name, shape_of(d), 4 * elements, flop * elements, [&] { total = run(); },
           [&] {
             const double right = reduce_on_host<Kokkos::Sum<double>>(d, term);
             return compare(
                 1, [&](std::size_t) { return total; }, [&](std::size_t) { return right; });
           }});
}

/// A step with a dense average.
template <class Exec>
void dense_kernels(const Exec& exec, const config::Input& input, std::size_t d, const Measure& measure) {
  const optim::AdamUpdate update = last_update(input);
  const auto g = make_array(exec, gradient, d), x = make_array(exec, parameters, d), m = make_array(exec, momentum, d);
  const auto v = make_variance(exec, d);
  const auto rates = make_rates<Exec>(input, d);
  const OrderedSum<Exec> sum(d);
  measure_sum(
      measure, "gradient_norm", d, 2, [&] { return square(optim::l2_norm(exec, sum, g)); },
      [](std::size_t i) { return square(value_at(gradient, i)); });
  measure_sum(
      measure, "variance_norm", d, 1, [&] { return optim::variance_l1(exec, sum, v); },
      [](std::size_t i) { return static_cast<double>(variance_at(i)); });
  measure({"adam", shape_of(d), 28 * static_cast<double>(d), 14 * static_cast<double>(d),
           [&] { optim::update_all(exec, update, rates, g, m, v, x); },
           [&] {
             const auto x_host = on_host(x), m_host = on_host(m), v_host = on_host(v);
             const auto ref = [&](std::size_t i) {
               return AdamRef(update, i, weight_decay(input, i, d), true, value_at(momentum, i));
             };
             return compare(d, x_host, [&](std::size_t i) { return ref(i).x; }) +
                    compare(d, m_host, [&](std::size_t i) { return ref(i).m; }) +
                    compare(d, v_host, [&](std::size_t i) { return ref(i).v; });
           }});
}

/// The compressions of a step: all chunks on a worker, one chunk on a server; and the update.
template <class Exec>
void compressed_kernels(const Exec& exec, const config::Input& input, std::size_t d, const Measure& measure) {
  const optim::AdamUpdate update = last_update(input);
  const double elements = static_cast<double>(d), bits = elements / 8;
  const compress::LayoutRef layout_ref(d, senders, compress::Grouping::vector);
  const compress::Layout layout(d, senders, compress::Grouping::vector);
  const auto compressor = compress::make_compressor<Exec>(layout, compress::Options());
  const std::size_t message = compressor->message_words();
  using Words = Vector<Exec, std::uint32_t>;
  const Words messages("OneBit::bench::messages", senders * message);
  const Words averaged("OneBit::bench::averaged", senders * message);
  fill_messages(exec, message, averaged);
  const auto averaged_ref = [&] {
    return compress::decompress_ref(layout_ref, compress::Options(), to_vector<std::uint32_t>(averaged));
  };
  {
    // A worker compresses the momentum, which it makes from the last average and g; and then a vector m.
    const auto g = make_array(exec, gradient, d), m = make_array(exec, momentum, d);
    const Vector<Exec, const std::uint32_t> last = averaged;
    const auto feedback = compressor->no_feedback(0, senders);
    const compress::Compression<Exec> moving{
        0, senders, g, feedback, messages, {update.beta1, update.one_minus_beta1, update.gradient_factor, last}};
    const compress::Compression<Exec> worker{0, senders, m, feedback, messages};
    const auto check = [&](const auto& vector) {
      const auto c = on_host(feedback.c);
      return compare(d, c, [&](std::size_t i) { return vector(i) + earlier_residual(i); }) +
             check_compression(exec, *compressor, layout_ref, worker);
    };
    fill_feedback(exec, feedback);
    measure({"momentum_compress", shape_of(d), 12 * elements + 2 * bits, 6 * elements,
             [&] { compressor->compress(exec, moving); },
             [&] {
               const auto m_ref = averaged_ref();
               return check([&](std::size_t i) {
                 return update.beta1 * static_cast<double>(m_ref[i]) +
                        update.one_minus_beta1 * update.gradient_factor * static_cast<double>(value_at(gradient, i));
               });
             }});
    fill_feedback(exec, feedback);
    measure({"compress", shape_of(d), 12 * elements + bits, 3 * elements, [&] { compressor->compress(exec, worker); },
             [&] { return check([](std::size_t i) { return static_cast<double>(value_at(momentum, i)); }); }});
    fill_feedback(exec, feedback);
    measure_sum(
        measure, "residual_norm", d, 3, [&] { return square(compressor->residual_l2(exec, 0, senders, feedback)); },
        [](std::size_t i) { return square(earlier_residual(i)); });
  }
  {
    // A server averages the messages of a chunk, adds its residual and compresses the sum.
    const std::size_t length = layout.chunk_begins[1];
    const double of_chunk = static_cast<double>(length);
    const auto feedback = compressor->no_feedback(0, 1);
    const Words recompressed("OneBit::bench::recompressed", message);
    const compress::Compression<Exec> server{0, 1, {}, feedback, recompressed, {}, {senders, messages}};
    fill_messages(exec, message, messages);
    fill_feedback(exec, feedback);
    measure({"average_recompress", std::to_string(senders) + "x" + std::to_string(length),
             8 * of_chunk + (senders + 1) * of_chunk / 8, (senders + 3) * of_chunk,
             [&] { compressor->compress(exec, server); },
             [&] {
               const auto c = on_host(feedback.c);
               const auto mean_ref = compress::average_ref(layout_ref, compress::Options(), 0, senders,
                                                           to_vector<std::uint32_t>(messages));
               return compare(length, c, [&](std::size_t i) { return mean_ref[i] + earlier_residual(i); }) +
                      check_compression(exec, *compressor, layout_ref, server);
             }});
  }
  const auto x = make_array(exec, parameters, d), v = make_variance(exec, d);
  const auto rates = make_rates<Exec>(input, d);
  const compress::AnyDecoder<Exec> decoder = compressor->decoder(averaged);
  measure({"decompress_update", shape_of(d), 12 * elements + bits, 7 * elements,
           [&] { optim::update_parameters(exec, update, rates, decoder, v, x); },
           [&] {
             const auto host = on_host(x);
             const auto m_ref = averaged_ref();
             return compare(d, host, [&](std::size_t i) {
               return AdamRef(update, i, weight_decay(input, i, d), false, m_ref[i]).x;
             });
           }});
}

}  // namespace

template <class Exec>
void optimizer_kernels(const Exec& exec, const config::Input& input, std::size_t d, const Measure& measure) {
  dense_kernels(exec, input, d, measure);
  compressed_kernels(exec, input, d, measure);
}

#define ONEBIT_INSTANTIATE(Exec) \
  template void optimizer_kernels(const Exec&, const config::Input&, std::size_t, const Measure&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
