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

dnnl::memory::desc floats(const Dims& dims, Tag tag) { return {dims, dnnl::memory::data_type::f32, tag}; }

/// What oneDNN calls the operands of a convolution.
struct Operands {
  dnnl::memory::desc input, weight, any_weight, output;
  Dims strides, padding;

  explicit Operands(const ImageConvolution& c) {
    const ConvolutionExtents& e = c.extents;
    const Dims dims{e.outputs, e.channels, e.kernel, e.kernel};
    input = floats({c.images, e.channels, e.height, e.width}, Tag::nhwc);
    weight = floats(dims, Tag::ohwi);
    any_weight = floats(dims, Tag::any);
    output = floats({c.images, e.outputs, e.output_height(), e.output_width()}, Tag::nhwc);
    strides = {e.stride, e.stride};
    padding = {e.padding, e.padding};
  }
};

constexpr auto direct = dnnl::algorithm::convolution_direct;

Forward::primitive_desc forward_plan(const Operands& o) {
  const dnnl::primitive_attr attributes = with_own_scratch();
#if DNNL_VERSION_MAJOR >= 3
  return {engine(),     dnnl::prop_kind::forward_training,
          direct,       o.input,
          o.any_weight, o.output,
          o.strides,    o.padding,
          o.padding,    attributes};
#else
  return {{dnnl::prop_kind::forward_training, direct, o.input, o.any_weight, o.output, o.strides, o.padding, o.padding},
          attributes,
          engine()};
#endif
}

/// Of BackwardInput or BackwardWeight, whose operands oneDNN takes in one order.
template <class Pass>
typename Pass::primitive_desc backward_plan(const Operands& o) {
  const dnnl::primitive_attr attributes = with_own_scratch();
  const Forward::primitive_desc forward = forward_plan(o);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), direct, o.input, o.any_weight, o.output, o.strides, o.padding, o.padding, forward, attributes};
#else
  return {{direct, o.input, o.any_weight, o.output, o.strides, o.padding, o.padding}, attributes, engine(), forward};
#endif
}

/// A pass of one shape.
template <class Pass>
struct Plan {
  Operands operands;
  dnnl::memory::desc arranged, scratch;
  dnnl::reorder reorder;  ///< of the weight into `arranged`, or of its gradient out of it
  Pass pass;
};

dnnl::reorder reorder_of(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  return dnnl::reorder(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
}

template <class Pass>
Plan<Pass> make_plan(const ImageConvolution& convolution) {
  const Operands operands(convolution);
  if constexpr (std::is_same_v<Pass, Forward>) {
    const auto plan = forward_plan(operands);
    const dnnl::memory::desc arranged = plan.weights_desc();
    return {operands, arranged, plan.scratchpad_desc(), reorder_of(operands.weight, arranged), Pass(plan)};
  } else {
    const auto plan = backward_plan<Pass>(operands);
    constexpr bool of_input = std::is_same_v<Pass, BackwardInput>;
    const dnnl::memory::desc arranged = of_input ? plan.weights_desc() : plan.diff_weights_desc();
    return {operands, arranged, plan.scratchpad_desc(),
            of_input ? reorder_of(operands.weight, arranged) : reorder_of(arranged, operands.weight), Pass(plan)};
  }
}

/// The plan of the calling thread.
template <class Pass>
const Plan<Pass>& plan_of(const ImageConvolution& convolution) {
  using Key = std::tuple<int, int, int, int, int, int, int, int>;
  thread_local std::map<Key, Plan<Pass>> plans;
  const ConvolutionExtents& e = convolution.extents;
  const Key key{e.height, e.width, e.channels, e.outputs, e.kernel, e.stride, e.padding, convolution.images};
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

}  // namespace

std::size_t onednn_arranged_length(ConvolutionPass pass, const ImageConvolution& convolution) {
  const dnnl::memory::desc arranged = pass == ConvolutionPass::forward ? plan_of<Forward>(convolution).arranged
                                                                       : plan_of<BackwardInput>(convolution).arranged;
  return (arranged.get_size() + sizeof(float) - 1) / sizeof(float);
}

void onednn_arrange(ConvolutionPass pass, const ImageConvolution& convolution, const float* weight, float* arranged) {
  const auto arrange = [&](const auto& plan) {
    dnnl::memory from = memory_of(plan.operands.weight, weight), to = memory_of(plan.arranged, arranged);
    plan.reorder.execute(stream(), from, to);
  };
  if (pass == ConvolutionPass::forward) return arrange(plan_of<Forward>(convolution));
  arrange(plan_of<BackwardInput>(convolution));
}

void onednn_convolution(const ImageConvolution& convolution, const float* input, const float* weight, float* output) {
  const Plan<Forward>& plan = plan_of<Forward>(convolution);
  plan.pass.execute(stream(), {{DNNL_ARG_SRC, memory_of(plan.operands.input, input)},
                               {DNNL_ARG_WEIGHTS, memory_of(plan.arranged, weight)},
                               {DNNL_ARG_DST, memory_of(plan.operands.output, output)},
                               {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
}

void onednn_convolution_input(const ImageConvolution& convolution, const float* d_output, const float* weight, bool add,
                              float* d_input) {
  const Plan<BackwardInput>& plan = plan_of<BackwardInput>(convolution);
  const std::size_t length =
      static_cast<std::size_t>(convolution.images) * convolution.extents.pixels() * convolution.extents.channels;
  // oneDNN does not add to what is there.
  float* const result = add ? floats_of_thread(length) : d_input;
  plan.pass.execute(stream(), {{DNNL_ARG_DIFF_DST, memory_of(plan.operands.output, d_output)},
                               {DNNL_ARG_WEIGHTS, memory_of(plan.arranged, weight)},
                               {DNNL_ARG_DIFF_SRC, memory_of(plan.operands.input, result)},
                               {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
  if (add)
    for (std::size_t i = 0; i < length; ++i) d_input[i] += result[i];
}

void onednn_convolution_weight(const ImageConvolution& convolution, const float* d_output, const float* input,
                               float* d_weight) {
  const Plan<BackwardWeight>& plan = plan_of<BackwardWeight>(convolution);
  dnnl::memory arranged =
      memory_of(plan.arranged, floats_of_thread((plan.arranged.get_size() + sizeof(float) - 1) / sizeof(float)));
  plan.pass.execute(stream(), {{DNNL_ARG_DIFF_DST, memory_of(plan.operands.output, d_output)},
                               {DNNL_ARG_SRC, memory_of(plan.operands.input, input)},
                               {DNNL_ARG_DIFF_WEIGHTS, arranged},
                               {DNNL_ARG_SCRATCHPAD, scratch_memory(plan.scratch)}});
  dnnl::memory result = memory_of(plan.operands.weight, d_weight);
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
