/// \file nn_transformer_test.cpp
/// The whole models: parameters, gradients against central differences, what a result depends on and what it must not.

#include <limits>
#include <map>

#include "base/error.hpp"
#include "nn/transformer.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

const Shape bert{Architecture::bert, 2, 12, 3, 20, 17, 10, true};
const Shape gpt{Architecture::gpt, 2, 12, 3, 20, 17, 10};
/// The same with the head of five classes.
const Shape bert_classes{Architecture::bert, 2, 12, 3, 20, 17, 10, false, 5};
const Shape gpt_classes{Architecture::gpt, 2, 12, 3, 20, 17, 10, false, 5};
/// The same with the mean of a sample's rows in front of it.
const Shape bert_mean{Architecture::bert, 2, 12, 3, 20, 17, 10, false, 5, true};
const Shape gpt_mean{Architecture::gpt, 2, 12, 3, 20, 17, 10, false, 5, true};
/// Pairs of texts, of which the second one begins at position 4.
const Shape bert_pairs{Architecture::bert, 2, 12, 3, 20, 17, 10, true, 0, false, 4};
const Shape bert_pair_classes{Architecture::bert, 2, 12, 3, 20, 17, 10, false, 5, false, 4};
/// The same with a head that points at a span of the second text.
const Shape bert_spans{Architecture::bert, 2, 12, 3, 20, 17, 10, false, 0, false, 4, true};
const Shape shapes[] = {bert,     gpt,        bert_classes,      gpt_classes, bert_mean,
                        gpt_mean, bert_pairs, bert_pair_classes, bert_spans};

std::string name_of(const Shape& shape) {
  return std::string(shape.architecture == Architecture::bert ? "BERT" : "GPT") +
         (shape.classes > 0 ? " with classes" : "") + (shape.mean_pooling ? " of the mean" : "") +
         (shape.second_text > 0 ? " of pairs" : "") + (shape.spans ? " with spans" : "");
}
const DropoutKey key{3, 7, 40};

std::vector<Tensor> tensors_of(const Shape& shape) { return tensor_table(shape).tensors(); }

/// A batch on the host.
struct Batch {
  int samples, sequence;
  std::vector<int> input, predicted, target;

  /// \param per_sample predicted rows of each sample; 1 for classes, 2 for spans, whose texts have different lengths
  Batch(const Shape& shape, int samples_, int sequence_, int per_sample)
      : samples(samples_),
        sequence(sequence_),
        input(test::random_integers(samples * sequence, shape.vocabulary, 1)),
        target(test::random_integers(samples * (shape.classes > 0 ? 1 : per_sample), shape.outputs(sequence), 2)) {
    if (shape.spans) {
      target.clear();
      for (int b = 0; b < samples; ++b) {
        const int first = shape.second_text, last = sequence - 1 - b % 3;
        predicted.insert(predicted.end(), {b * sequence + first, b * sequence + last});
        target.insert(target.end(), {first + b % 2, last - b % 2});
      }
      return;
    }
    if (shape.classes > 0) per_sample = 1;
    for (int b = 0; b < samples; ++b)
      for (const int t : test::random_choice(per_sample, sequence, 3 + b)) predicted.push_back(b * sequence + t);
  }

  /// Samples [first, first + count).
  Batch part(int first, int count) const {
    Batch part = *this;
    const int per_sample = static_cast<int>(predicted.size()) / samples;
    part.samples = count;
    part.input.assign(input.begin() + first * sequence, input.begin() + (first + count) * sequence);
    part.predicted.assign(predicted.begin() + first * per_sample, predicted.begin() + (first + count) * per_sample);
    part.target.assign(target.begin() + first * per_sample, target.begin() + (first + count) * per_sample);
    for (int& row : part.predicted) row -= first * sequence;
    return part;
  }

  template <class Exec>
  Tokens<Exec> tokens() const {
    return {test::to_device<Exec>(input), test::to_device<Exec>(predicted), test::to_device<Exec>(target)};
  }
};

/// Parameters as `initialize` draws them, but of a size at which no part of a gradient is small; biases too.
template <class Exec, class Real>
std::vector<Real> parameters(const Shape& shape) {
  const Vector<Exec, Real> x("OneBit::test::x", tensor_table(shape).size());
  initialize<Exec, Real>(Exec(), shape, 1, x);
  std::vector<Real> values = test::to_host(x);
  const Array<Real> noise = test::random_array<Real>(1, static_cast<int>(values.size()), 5, 0.1);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (values[i] == 1 ? 1 : 10 * values[i]) + noise(static_cast<int>(i));
  return values;
}

template <class Real>
struct LossAndGradient {
  double loss = 0;
  std::vector<Real> gradient;
};

/// A model on the device, for one size of batches.
template <class Exec, class Real>
class Model {
public:
  Model(const Shape& shape, const Batch& batch, Real dropout, Precision precision = Precision::fp32)
      : m_size(tensor_table(shape).size()),
        m_tokens(batch.tokens<Exec>()),
        m_model(m_exec, shape, batch.samples, batch.sequence, static_cast<int>(batch.predicted.size()), dropout,
                linalg::MatrixProduct<Exec, Real>(precision)) {}

  double accuracy() { return m_model.accuracy(m_exec, m_tokens); }
  double loss(const std::vector<Real>& x) { return m_model.loss(m_exec, test::to_device<Exec>(x), m_tokens); }
  double forward(const std::vector<Real>& x, const DropoutKey& drawn_by = key) {
    return m_model.forward(m_exec, test::to_device<Exec>(x), m_tokens, drawn_by);
  }
  LossAndGradient<Real> gradient(const std::vector<Real>& x, Real scale = 1, const DropoutKey& drawn_by = key) {
    const Vector<Exec, Real> device = test::to_device<Exec>(x), g("OneBit::test::g", m_size);
    Kokkos::deep_copy(g, std::numeric_limits<Real>::quiet_NaN());  // all of it is to be written
    const double loss = m_model.forward(m_exec, device, m_tokens, drawn_by);
    m_model.backward(m_exec, device, m_tokens, scale, false, g);
    return {loss, test::to_host(g)};
  }
  std::vector<Real> logits() const { return test::to_host(m_model.logits()); }

private:
  Exec m_exec;
  std::size_t m_size;
  Tokens<Exec> m_tokens;
  Transformer<Exec, Real> m_model;
};

template <class Exec>
class TransformerTest : public ::testing::Test {};
TYPED_TEST_SUITE(TransformerTest, test::Backends, test::BackendNames);

// ---- parameters ----

TEST(Shape, parameter_counts_of_bert_are_those_of_the_paper) {
  EXPECT_EQ(tensor_table({Architecture::bert, 12, 768, 12, 3072, 30522, 512, true}).size(), 110106428u);
  EXPECT_EQ(tensor_table({Architecture::bert, 24, 1024, 16, 4096, 30522, 512, true}).size(), 336226108u);
}

TEST(Shape, parameter_count_of_gpt_2_is_that_of_the_published_model) {
  EXPECT_EQ(tensor_table({Architecture::gpt, 12, 768, 12, 3072, 50257, 1024}).size(), 124439808u);
}

TEST(Shape, classes_take_the_place_of_all_other_heads) {
  const auto names = [](const Shape& shape) {
    std::vector<std::string> names;
    for (const Tensor& tensor : tensors_of(shape)) names.push_back(tensor.name);
    return names;
  };
  for (const auto& [shape, classes] : {std::make_pair(bert, bert_classes), std::make_pair(gpt, gpt_classes)}) {
    std::vector<std::string> expected;
    for (const std::string& name : names(shape))
      if (name.find("head") == std::string::npos && name.find("pooler") == std::string::npos &&
          name.find("next_sentence") == std::string::npos)
        expected.push_back(name);
    for (const char* name : {"dense.weight", "dense.bias", "output.weight", "output.bias"})
      expected.push_back(std::string("classifier.") + name);
    EXPECT_EQ(names(classes), expected);
    EXPECT_EQ(tensors_of(classes).back().size(), 5u);
  }
}

TEST(Shape, spans_have_two_scores_in_place_of_all_heads) {
  std::vector<Tensor> spans = tensors_of(bert_spans), classes = tensors_of(bert_pair_classes);
  EXPECT_EQ(spans.back().name, "spans.output.weight");
  EXPECT_EQ(spans.back().shape, (std::vector<std::size_t>{2, 12}));
  ASSERT_EQ(spans.size() + 3, classes.size());
  for (std::size_t k = 0; k + 1 < spans.size(); ++k) EXPECT_EQ(spans[k].name, classes[k].name);
}

TEST(Shape, weight_decay_skips_vectors_alone) {
  for (const Shape& shape : shapes)
    for (const Tensor& tensor : tensors_of(shape)) EXPECT_EQ(tensor.decays, tensor.shape.size() == 2) << tensor.name;
}

TEST(Shape, that_makes_no_model_is_refused) {
  const auto refused = [](auto change) {
    Shape shape = bert;
    change(shape);
    EXPECT_THROW(tensor_table(shape), InputError);
  };
  refused([](Shape& shape) { shape.heads = 5; });
  refused([](Shape& shape) { shape.layers = 0; });
  refused([](Shape& shape) { shape.hidden = -12; });
  refused([](Shape& shape) { shape.vocabulary = 0; });
  refused([](Shape& shape) { shape.classes = 1; });
  refused([](Shape& shape) { shape.classes = -2; });
  refused([](Shape& shape) {
    shape.classes = 2;
    shape.spans = true;
  });
  refused([](Shape& shape) { shape.initializer_range = 0; });
}

TYPED_TEST(TransformerTest, batches_that_do_not_fit_are_refused) {
  const auto make = [](int batch, int sequence, int predictions, float dropout) {
    Transformer<TypeParam, float>(TypeParam(), bert, batch, sequence, predictions, dropout);
  };
  EXPECT_NO_THROW(make(2, 10, 20, 0.5f));
  EXPECT_THROW(make(0, 10, 1, 0), InputError);
  EXPECT_THROW(make(2, 11, 1, 0), InputError);
  EXPECT_THROW(make(2, 10, 21, 0), InputError);
  EXPECT_THROW(make(2, 10, 0, 0), InputError);
  EXPECT_THROW(make(2, 10, 1, 1), InputError);
  EXPECT_THROW(make(2, 10, 1, -0.1f), InputError);
  EXPECT_THROW((Transformer<TypeParam, float>(TypeParam(), bert_classes, 2, 10, 3, 0)), InputError);
  EXPECT_THROW((Transformer<TypeParam, float>(TypeParam(), bert_pairs, 2, 4, 3, 0)), InputError);
  EXPECT_THROW((Transformer<TypeParam, float>(TypeParam(), bert_spans, 2, 10, 2, 0)), InputError);
}

TYPED_TEST(TransformerTest, initial_parameters_have_their_moments) {
  for (const auto& [architecture, range] : {std::pair(Architecture::bert, 0.0), std::pair(Architecture::gpt, 0.0),
                                            std::pair(Architecture::bert, 0.07), std::pair(Architecture::gpt, 0.07)}) {
    Shape shape{architecture, 2, 64, 4, 256, 500, 64, true};
    if (range != 0) shape.initializer_range = range;
    const TensorTable table = tensor_table(shape);
    const Vector<TypeParam, float> x("OneBit::test::x", table.size());
    initialize<TypeParam, float>(TypeParam(), shape, 1, x);
    const std::vector<float> values = test::to_host(x);
    for (const Tensor& tensor : table.tensors()) {
      double sum = 0, squares = 0;
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
        sum += values[i];
        squares += double(values[i]) * values[i];
      }
      const double count = static_cast<double>(tensor.size());
      const auto ends_with = [&](const std::string& end) {
        return tensor.name.size() >= end.size() &&
               tensor.name.compare(tensor.name.size() - end.size(), end.size(), end) == 0;
      };
      if (tensor.decays) {
        const bool into_residual = ends_with("output.weight") && architecture == Architecture::gpt;
        // BERT's deviation is the default, and that of embeddings always.
        const bool is_embedding = tensor.name.rfind("embeddings.", 0) == 0;
        const double weights = range == 0 || is_embedding ? 0.02 : range;
        const double deviation = into_residual ? weights / 2 : weights;  // √(2 L) = 2
        EXPECT_NEAR(sum / count, 0, 5 * deviation / std::sqrt(count)) << tensor.name;
        EXPECT_NEAR(std::sqrt(squares / count) / deviation, 1, 5 / std::sqrt(2 * count)) << tensor.name;
      } else {
        const double expected = ends_with("norm.weight") ? count : 0;
        EXPECT_EQ(sum, expected) << tensor.name;
        EXPECT_EQ(squares, expected) << tensor.name;
      }
    }
  }
}

TYPED_TEST(TransformerTest, untrained_model_guesses) {
  for (Shape shape : {bert, gpt}) {
    shape.vocabulary = 1000;
    const Batch batch(shape, 4, 10, 5);
    const Vector<TypeParam, float> x("OneBit::test::x", tensor_table(shape).size());
    initialize<TypeParam, float>(TypeParam(), shape, 1, x);
    EXPECT_NEAR((Model<TypeParam, float>(shape, batch, 0).loss(test::to_host(x))), std::log(1000.0), 0.1);
  }
}

// ---- gradients ----

TYPED_TEST(TransformerTest, gradient_equals_central_differences) {
  for (const Shape& shape : shapes)
    for (const double dropout : {0.0, 0.2}) {
      const Batch batch(shape, 3, 9, 4);
      Model<TypeParam, double> model(shape, batch, dropout);
      std::vector<double> x = parameters<TypeParam, double>(shape);
      const std::vector<double> gradient = model.gradient(x).gradient;
      for (const Tensor& tensor : tensors_of(shape)) {
        const auto begin = x.begin() + tensor.offset;
        std::vector<double> part(begin, begin + tensor.size());
        const std::vector<double> part_gradient(gradient.begin() + tensor.offset,
                                                gradient.begin() + tensor.offset + tensor.size());
        // It adds the same to all scores among which is chosen.
        if (shape.spans && tensor.name == "encoder.1.feed_forward.norm.bias") {
          for (const double g : part_gradient) EXPECT_NEAR(g, 0, 1e-14);
          continue;
        }
        const auto f = [&] {
          std::copy(part.begin(), part.end(), begin);
          return model.forward(x);
        };
        EXPECT_LE(test::gradient_error(f, part, part_gradient, 1), 1e-7)
            << tensor.name << " of " << name_of(shape) << ", dropout " << dropout;
        f();  // x as it was
      }
      const auto f = [&] { return model.forward(x); };
      EXPECT_LE(test::gradient_error(f, x, gradient), 1e-7);
    }
}

TYPED_TEST(TransformerTest, parameters_without_a_loss_have_gradient_zero) {
  const Batch batch(bert, 2, 9, 4);
  Model<TypeParam, float> model(bert, batch, 0);
  const std::vector<float> gradient = model.gradient(parameters<TypeParam, float>(bert)).gradient;
  for (const Tensor& tensor : tensors_of(bert)) {
    if (tensor.name.rfind("pooler", 0) != 0 && tensor.name.rfind("next_sentence", 0) != 0) continue;
    for (std::size_t i = 0; i < tensor.size(); ++i) EXPECT_EQ(gradient[tensor.offset + i], 0) << tensor.name;
  }
}

/// The second type has an effect, and a gradient, only where there is a second text.
TYPED_TEST(TransformerTest, second_type_is_that_of_the_second_text) {
  for (const Shape& shape : {bert, bert_pairs}) {
    const Batch batch(shape, 2, 9, 4);
    Model<TypeParam, double> model(shape, batch, 0);
    std::vector<double> x = parameters<TypeParam, double>(shape);
    const Tensor type = tensors_of(shape)[2];
    ASSERT_EQ(type.name, "embeddings.type.weight");
    const std::vector<double> gradient = model.gradient(x).gradient;
    const double before = model.loss(x);
    double sum = 0;
    for (std::size_t i = type.offset + type.size() / 2; i < type.offset + type.size(); ++i) {
      sum += std::abs(gradient[i]);
      x[i] += i % 2 == 0 ? 1 : -1;
    }
    EXPECT_EQ(sum > 0, shape.second_text > 0);
    EXPECT_EQ(model.loss(x) != before, shape.second_text > 0);
  }
}

TYPED_TEST(TransformerTest, gradient_is_scaled_and_added) {
  for (const Shape& shape : shapes) {
    const Batch batch(shape, 2, 9, 4);
    const std::vector<double> x = parameters<TypeParam, double>(shape);
    const TypeParam exec;
    Transformer<TypeParam, double> model(exec, shape, 2, 9, static_cast<int>(batch.predicted.size()), 0.1);
    const auto tokens = batch.tokens<TypeParam>();
    const Vector<TypeParam, double> device = test::to_device<TypeParam>(x), g("OneBit::test::g", x.size());
    for (const bool add : {false, true}) {
      model.forward(exec, device, tokens, key);
      model.backward(exec, device, tokens, add ? 0.75 : 0.25, add, g);
    }
    const std::vector<double> once = Model<TypeParam, double>(shape, batch, 0.1).gradient(x).gradient;
    EXPECT_LE(test::relative_error(test::to_host(g), once), 1e-14);
  }
}

TYPED_TEST(TransformerTest, what_is_said_to_be_final_is) {
  for (const Shape& shape : shapes) {
    const Batch batch(shape, 2, 9, 4);
    const std::vector<float> x = parameters<TypeParam, float>(shape);
    const TypeParam exec;
    Transformer<TypeParam, float> model(exec, shape, 2, 9, static_cast<int>(batch.predicted.size()), 0.1f);
    const auto tokens = batch.tokens<TypeParam>();
    const Vector<TypeParam, float> device = test::to_device<TypeParam>(x), g("OneBit::test::g", x.size());
    std::vector<std::pair<std::size_t, std::vector<float>>> said;
    model.forward(exec, device, tokens, key);
    model.backward(exec, device, tokens, 1, false, g, [&](std::size_t b) {
      fence(exec, "OneBit::test::ready_from");
      const std::vector<float> all = test::to_host(g);
      said.emplace_back(b, std::vector<float>(all.begin() + b, all.end()));
    });
    fence(exec, "OneBit::test::backward");
    const std::vector<float> all = test::to_host(g);
    ASSERT_EQ(said.size(), 2u * shape.layers);
    for (std::size_t k = 0; k < said.size(); ++k) {
      const auto& [begin, values] = said[k];
      EXPECT_TRUE(test::same_bits(values, std::vector<float>(all.begin() + begin, all.end()))) << begin;
      EXPECT_LT(begin, k > 0 ? said[k - 1].first : x.size());
    }
    // All but the embeddings, and GPT's first normalisation, comes before the end.
    const std::vector<Tensor> tensors = tensors_of(shape);
    const auto last = std::find_if(tensors.begin(), tensors.end(),
                                   [&](const Tensor& tensor) { return tensor.offset == said.back().first; });
    ASSERT_NE(last, tensors.end());
    EXPECT_NE(last->name.find(".0.attention.qkv.weight"), std::string::npos);
  }
}

TYPED_TEST(TransformerTest, loss_is_forward_without_dropout) {
  for (const Shape& shape : shapes) {
    const Batch batch(shape, 3, 9, 4);
    const std::vector<float> x = parameters<TypeParam, float>(shape);
    Model<TypeParam, float> with(shape, batch, 0.3f), without(shape, batch, 0);
    const double loss = without.forward(x);
    EXPECT_EQ(without.loss(x), loss);
    EXPECT_NE(with.forward(x), loss);
    EXPECT_EQ(with.loss(x), loss);
    const std::vector<float> logits = with.logits();
    ASSERT_EQ(logits.size(), batch.predicted.size() * shape.outputs(9));
    Array<float> rows(static_cast<int>(batch.predicted.size()), shape.outputs(9));
    rows.values = logits;
    const std::vector<float> right =
        shape.spans ? span_measure_ref(rows, batch.predicted, batch.target, false) : is_right_ref(rows, batch.target);
    EXPECT_EQ(with.accuracy(), std::count(right.begin(), right.end(), 1.0f) / double(right.size()));
  }
}

TYPED_TEST(TransformerTest, causal_model_does_not_look_ahead) {
  const std::vector<float> x = parameters<TypeParam, float>(gpt);
  Batch batch(gpt, 1, 9, 9);
  for (int t = 0; t < 9; ++t) batch.predicted[t] = t;
  const auto logits = [&] {
    Model<TypeParam, float> model(gpt, batch, 0);
    model.loss(x);
    return model.logits();
  };
  const std::vector<float> before = logits();
  batch.input[5] = (batch.input[5] + 1) % gpt.vocabulary;
  const std::vector<float> after = logits();
  for (int t = 0; t < 9; ++t) {
    const auto begin = t * gpt.vocabulary, end = begin + gpt.vocabulary;
    const std::vector<float> a(before.begin() + begin, before.begin() + end);
    const std::vector<float> b(after.begin() + begin, after.begin() + end);
    if (t < 5)
      EXPECT_TRUE(test::same_bits(a, b)) << "position " << t;
    else
      EXPECT_GT(test::relative_error(a, b), 1e-4) << "position " << t;
  }
}

TYPED_TEST(TransformerTest, nan_reaches_the_loss) {
  for (const Shape& shape : shapes) {
    std::vector<float> x = parameters<TypeParam, float>(shape);
    x[tensors_of(shape)[5].offset] = std::nanf("");
    EXPECT_TRUE(std::isnan(Model<TypeParam, float>(shape, Batch(shape, 2, 9, 4), 0.1f).forward(x)));
  }
}

// ---- launches ----

/// Kernels of nn that a step of a BERT with dropout starts, without those of attention.
class Launches {
public:
  template <class Exec>
  static int of_a_step(int layers) {
    Shape shape = bert;
    shape.layers = layers;
    const Batch batch(shape, 2, 9, 4);
    Model<Exec, float> model(shape, batch, 0.1f);
    const std::vector<float> x = parameters<Exec, float>(shape);
    s_count = 0;
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(count);
    Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(count);
    model.gradient(x);
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
    Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(nullptr);
    return s_count;
  }

private:
  static void count(const char* name, std::uint32_t, std::uint64_t*) {
    const std::string label = name;
    s_count += label.rfind("OneBit::nn::", 0) == 0 && label.find("attention") == std::string::npos &&
               label.find("softmax") == std::string::npos;
  }
  static inline int s_count = 0;
};

TYPED_TEST(TransformerTest, a_step_launches_few_kernels) {
  // Forward: bias of q, k, v; bias and GELU; two residuals. Backward: two for each of two norms and two biases.
  const int four = Launches::of_a_step<TypeParam>(4);
  EXPECT_EQ(four - Launches::of_a_step<TypeParam>(3), 12);
  // Forward: 3 for the embeddings, 4 in the head, 2 sums of the loss. Backward: 1 sets sums to 0, 7 in the head, 6 for
  // the embeddings. Two fills with a constant have Kokkos' labels.
  EXPECT_EQ(four - 4 * 12, 23);
}

// ---- what results do not depend on ----

TYPED_TEST(TransformerTest, samples_may_be_divided_among_batches) {
  for (const Shape& shape : shapes)
    for (const double dropout : {0.0, 0.3}) {
      const Batch batch(shape, 4, 9, 3);
      const std::vector<double> x = parameters<TypeParam, double>(shape);
      const auto whole = Model<TypeParam, double>(shape, batch, dropout).gradient(x);
      LossAndGradient<double> sum{0, std::vector<double>(x.size())};
      for (const int first : {0, 1, 3}) {
        const int count = first == 1 ? 2 : 1;
        const auto part = Model<TypeParam, double>(shape, batch.part(first, count), dropout)
                              .gradient(x, count / 4.0, {key.seed, key.step, key.first_sample + first});
        sum.loss += part.loss * count / 4;
        for (std::size_t i = 0; i < x.size(); ++i) sum.gradient[i] += part.gradient[i];
      }
      EXPECT_NEAR(sum.loss, whole.loss, 1e-14 * whole.loss);
      EXPECT_LE(test::relative_error(sum.gradient, whole.gradient), 1e-13);
    }
}

/// Larger than the blocks of rows and of dropout, with ragged ends.
const Shape large_bert{Architecture::bert, 2, 132, 3, 300, 700, 80, true};
const Shape large_gpt{Architecture::gpt, 2, 132, 3, 300, 700, 80};
const Shape large_classes{Architecture::bert, 2, 132, 3, 300, 700, 80, false, 40};

#if defined(KOKKOS_ENABLE_SERIAL) && defined(KOKKOS_ENABLE_OPENMP) && !defined(ONEBIT_WITHOUT_OPENMP)
TEST(Transformer, host_backends_give_the_same_bits) {
  for (const Shape& shape : {large_bert, large_gpt, large_classes}) {
    const Batch batch(shape, 5, 77, 11);
    const std::vector<float> x = parameters<Kokkos::Serial, float>(shape);
    EXPECT_TRUE(test::same_bits(x, parameters<Kokkos::OpenMP, float>(shape)));
    const auto serial = Model<Kokkos::Serial, float>(shape, batch, 0.1f).gradient(x);
    const auto openmp = Model<Kokkos::OpenMP, float>(shape, batch, 0.1f).gradient(x);
    EXPECT_EQ(serial.loss, openmp.loss);
    EXPECT_TRUE(test::same_bits(serial.gradient, openmp.gradient));
  }
}
#else
TEST(Transformer, host_backends_give_the_same_bits) {
  GTEST_SKIP() << "this build does not have both Serial and OpenMP";
}
#endif

TYPED_TEST(TransformerTest, bits_do_not_depend_on_threads) {
  for (const Shape& shape : {large_bert, large_gpt, large_classes}) {
    const Batch batch(shape, 5, 77, 11);
    Model<TypeParam, float> model(shape, batch, 0.1f);
    const std::vector<float> x = parameters<TypeParam, float>(shape);
    const auto result = model.gradient(x);
    const std::string name =
        std::string(BackendName<TypeParam>::value) + (shape.classes > 0                          ? "_classes"
                                                      : shape.architecture == Architecture::bert ? "_bert"
                                                                                                 : "_gpt");
    test::print_bits("parameters_" + name, x);
    test::print_bits("loss_" + name, std::vector<double>{result.loss, model.loss(x)});
    test::print_bits("gradient_" + name, result.gradient);
  }
}

int allocations = 0;
void count_allocation(Kokkos_Profiling_SpaceHandle, const char* label, const void*, std::uint64_t) {
  allocations += std::string(label).find("OneBit") != std::string::npos;
}

// Rounded copies of the parameters and of activations last for one step.
TYPED_TEST(TransformerTest, gradient_in_bf16_is_that_of_its_own_step) {
  const std::string reason = linalg::missing<TypeParam>(Precision::bf16);
  if (!reason.empty()) GTEST_SKIP() << "bf16: " << reason;
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(name_of(shape));
    const Batch batch(shape, 3, 7, 3);
    const auto x = parameters<TypeParam, float>(shape);
    std::vector<float> larger = x;  // twice as large, softmax saturates and the gradient is that of its rounding
    for (float& value : larger) value *= 1.25f;
    Model<TypeParam, float> model(shape, batch, 0.0f, Precision::bf16), exact(shape, batch, 0.0f);
    const auto first = model.gradient(x), second = model.gradient(larger), again = model.gradient(x);
    EXPECT_TRUE(test::same_bits(first.gradient, again.gradient));
    EXPECT_NE(first.gradient, second.gradient);
    for (const auto& [rounded, parameters] : {std::pair{first, x}, std::pair{second, larger}}) {
      const auto unrounded = exact.gradient(parameters);
      double difference = 0, square = 0;
      for (std::size_t i = 0; i < unrounded.gradient.size(); ++i) {
        difference += std::pow(rounded.gradient[i] - unrounded.gradient[i], 2);
        square += std::pow(unrounded.gradient[i], 2);
      }
      EXPECT_LT(difference, 0.01 * square);  // a wrong factor would make them differ by as much as they are
      EXPECT_GT(difference, 0);
    }
  }
}

TYPED_TEST(TransformerTest, step_allocates_nothing) {
  const Batch batch(bert, 2, 9, 4);
  const TypeParam exec;
  Transformer<TypeParam, float> model(exec, bert, 2, 9, 8, 0.1f);
  const auto tokens = batch.tokens<TypeParam>();
  const Vector<TypeParam, float> x = test::to_device<TypeParam>(parameters<TypeParam, float>(bert));
  const Vector<TypeParam, float> g("OneBit::test::g", x.extent(0));
  Kokkos::Tools::Experimental::set_allocate_data_callback(count_allocation);
  const Vector<TypeParam, float> counted("OneBit::test::counted", 1);
  EXPECT_EQ(allocations, 1);
  model.forward(exec, x, tokens, key);
  model.backward(exec, x, tokens, 1.0f, false, g);
  model.loss(exec, x, tokens);
  Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
  EXPECT_EQ(allocations, 1);
  allocations = 0;
}

}  // namespace
}  // namespace onebit::nn
