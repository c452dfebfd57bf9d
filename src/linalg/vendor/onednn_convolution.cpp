#include "linalg/vendor/onednn_convolution.hpp"

#ifdef ONEBIT_WITH_ONEDNN
#include <map>
#include <tuple>
#include <type_traits>
#include <vector>

#include "linalg/vendor/onednn_engine.hpp"
#endif

namespace onebit::linalg {

#ifdef ONEBIT_WITH_ONEDNN
namespace {

using Dims = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;
using Forward = dnnl::convolution_forward;
using BackwardInput = dnnl::convolution_backward_data;
using BackwardWeight = dnnl::convolution_backward_weights;

/// What oneDNN calls the operands of a convolution, as a pass takes them.
struct Operands {
  dnnl::memory::desc input, weight, output;
  Dims strides, padding;

  /// The result of Pass is in float; what it multiplies may be rounded.
  template <class Pass>
  static Operands of(const ImageConvolution& c, Tag weight_order = Tag::any) {
    using Type = dnnl::memory::data_type;
    const Type factor = c.rounded ? Type::bf16 : Type::f32;
    return Operands(c, std::is_same_v<Pass, BackwardInput> ? Type::f32 : factor,
                    std::is_same_v<Pass, BackwardWeight> ? Type::f32 : factor,
                    std::is_same_v<Pass, Forward> ? Type::f32 : factor, weight_order);
  }

private:
  Operands(const ImageConvolution& c, dnnl::memory::data_type of_input, dnnl::memory::data_type of_weight,
           dnnl::memory::data_type of_output, Tag weight_order) {
    const ConvolutionExtents& e = c.extents;
    input = {{c.images, e.channels, e.height, e.width}, of_input, Tag::nhwc};
    weight = {{e.outputs, e.channels, e.kernel, e.kernel}, of_weight, weight_order};
    output = {{c.images, e.outputs, e.output_height(), e.output_width()}, of_output, Tag::nhwc};
    strides = {e.stride, e.stride};
    padding = {e.padding, e.padding};
  }
};

constexpr auto direct = dnnl::algorithm::convolution_direct;

Forward::primitive_desc forward_plan(const ImageConvolution& convolution) {
  const Operands o = Operands::of<Forward>(convolution);
  const dnnl::primitive_attr attributes = with_own_scratch();
#if DNNL_VERSION_MAJOR >= 3
  return {engine(),  dnnl::prop_kind::forward_training,
          direct,    o.input,
          o.weight,  o.output,
          o.strides, o.padding,
          o.padding, attributes};
#else
  return {{dnnl::prop_kind::forward_training, direct, o.input, o.weight, o.output, o.strides, o.padding, o.padding},
          attributes,
          engine()};
#endif
}

/// Of BackwardInput or BackwardWeight, whose operands oneDNN takes in one order.
template <class Pass>
typename Pass::primitive_desc backward_plan(const ImageConvolution& convolution) {
  const Operands o = Operands::of<Pass>(convolution);
  const dnnl::primitive_attr attributes = with_own_scratch();
  const Forward::primitive_desc forward = forward_plan(convolution);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), direct, o.input, o.weight, o.output, o.strides, o.padding, o.padding, forward, attributes};
#else
  return {{direct, o.input, o.weight, o.output, o.strides, o.padding, o.padding}, attributes, engine(), forward};
#endif
}

/// A pass of one shape.
template <class Pass>
struct Plan {
  Operands given, taken;  ///< as the caller has them, in float; and as the pass reads them
  dnnl::memory::desc arranged, scratch;
  dnnl::reorder reorder;  ///< of the weight into `arranged`, or of its gradient out of it
  Pass pass;
};

dnnl::reorder reorder_of(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  return dnnl::reorder(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
}

template <class Pass>
Plan<Pass> make_plan(const ImageConvolution& convolution) {
  const Operands given = Operands::of<Pass>({convolution.extents, convolution.images, false}, Tag::ohwi);
  const Operands taken = Operands::of<Pass>(convolution);
  if constexpr (std::is_same_v<Pass, Forward>) {
    const auto plan = forward_plan(convolution);
    const dnnl::memory::desc arranged = plan.weights_desc();
    return {given, taken, arranged, plan.scratchpad_desc(), reorder_of(given.weight, arranged), Pass(plan)};
  } else {
    const auto plan = backward_plan<Pass>(convolution);
    constexpr bool of_input = std::is_same_v<Pass, BackwardInput>;
    const dnnl::memory::desc arranged = of_input ? plan.weights_desc() : plan.diff_weights_desc();
    return {given,
            taken,
            arranged,
            plan.scratchpad_desc(),
            of_input ? reorder_of(given.weight, arranged) : reorder_of(arranged, given.weight),
            Pass(plan)};
  }
}

/// The plan of the calling thread.
template <class Pass>
const Plan<Pass>& plan_of(const ImageConvolution& convolution) {
  using Key = std::tuple<int, int, int, int, int, int, int, int, bool>;
  thread_local std::map<Key, Plan<Pass>> plans;
  const ConvolutionExtents& e = convolution.extents;
  const Key key{e.height, e.width,   e.channels,         e.outputs,          e.kernel,
                e.stride, e.padding, convolution.images, convolution.rounded};
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan<Pass>(convolution)).first;
  return found->second;
}

/// At least `length` floats of the calling thread, valid until the next call.
float* floats_of_thread(std::size_t length) {
  thread_local std::vector<float> memory;
  if (memory.size() < length) memory.resize(length);
  return memory.data();
}

/// A factor as the pass reads it: what the caller gave, or its copy in bfloat16. \param number of the factor: the
/// thread keeps memory for the copy of each, valid until the next call
template <int number>
dnnl::memory factor(const dnnl::memory::desc& given, const dnnl::memory::desc& taken, const float* values) {
  if (given == taken) return memory_of(given, values);
  thread_local std::vector<char> copy;
  if (copy.size() < taken.get_size()) copy.resize(taken.get_size());
  dnnl::memory from = memory_of(given, values), rounded = memory_of(taken, copy.data());
  reorder_of(given, taken).execute(stream(), from, rounded);
  return rounded;
}

}  // namespace

std::size_t onednn_arranged_length(ConvolutionPass pass, const ImageConvolution& convolution) {
  const dnnl::memory::desc arranged = pass == ConvolutionPass::forward ? plan_of<Forward>(convolution).arranged
                                                                       : plan_of<BackwardInput>(convolution).arranged;
  return (arranged.get_size() + sizeof(float) - 1) / sizeof(float);
}

void onednn_arrange(ConvolutionPass pass, const ImageConvolution& convolution, const float* weight, float* arranged) {
  const auto arrange = [&](const auto& plan) {
    dnnl::memory from = memory_of(plan.given.weight, weight), to = memory_of(plan.arranged, arranged);
    plan.reorder.execute(stream(), from, to);
  };
  if (pass == ConvolutionPass::forward) return arrange(plan_of<Forward>(convolution));
  arrange(plan_of<BackwardInput>(convolution));
}

void onednn_convolution(const ImageConvolution& convolution, const float* input, const float* weight, float* output) {
  const Plan<Forward>& plan = plan_of<Forward>(convolution);
  plan.pass.execute(stream(), {{DNNL_ARG_SRC, factor<0>(plan.given.input, plan.taken.input, input)},
                               {DNNL_ARG_WEIGHTS, memory_of(plan.arranged, weight)},
                               {DNNL_ARG_DST, memory_of(plan.given.output, output)},
                               {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
}

void onednn_convolution_input(const ImageConvolution& convolution, const float* d_output, const float* weight, bool add,
                              float* d_input) {
  const Plan<BackwardInput>& plan = plan_of<BackwardInput>(convolution);
  const std::size_t length =
      static_cast<std::size_t>(convolution.images) * convolution.extents.pixels() * convolution.extents.channels;
  // oneDNN does not add to what is there.
  float* const result = add ? floats_of_thread(length) : d_input;
  plan.pass.execute(stream(), {{DNNL_ARG_DIFF_DST, factor<1>(plan.given.output, plan.taken.output, d_output)},
                               {DNNL_ARG_WEIGHTS, memory_of(plan.arranged, weight)},
                               {DNNL_ARG_DIFF_SRC, memory_of(plan.given.input, result)},
                               {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
  if (add)
    for (std::size_t i = 0; i < length; ++i) d_input[i] += result[i];
}

void onednn_convolution_weight(const ImageConvolution& convolution, const float* d_output, const float* input,
                               float* d_weight) {
  const Plan<BackwardWeight>& plan = plan_of<BackwardWeight>(convolution);
  dnnl::memory arranged =
      memory_of(plan.arranged, floats_of_thread((plan.arranged.get_size() + sizeof(float) - 1) / sizeof(float)));
  plan.pass.execute(stream(), {{DNNL_ARG_DIFF_DST, factor<1>(plan.given.output, plan.taken.output, d_output)},
                               {DNNL_ARG_SRC, factor<0>(plan.given.input, plan.taken.input, input)},
                               {DNNL_ARG_DIFF_WEIGHTS, arranged},
                               {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
  dnnl::memory result = memory_of(plan.given.weight, d_weight);
  plan.reorder.execute(stream(), arranged, result);
}
#else
std::size_t onednn_arranged_length(ConvolutionPass, const ImageConvolution&) { return 0; }
void onednn_arrange(ConvolutionPass, const ImageConvolution&, const float*, float*) {}
void onednn_convolution(const ImageConvolution&, const float*, const float*, float*) {}
void onednn_convolution_input(const ImageConvolution&, const float*, const float*, bool, float*) {}
void onednn_convolution_weight(const ImageConvolution&, const float*, const float*, float*) {}
#endif

}  // namespace onebit::linalg
