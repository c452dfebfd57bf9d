#pragma once
/// \file published_models.hpp
/// Shapes of published models, for exchanges of their length with their tensors (`workload.parameters`).

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace onebit::config {

/// A transformer whose layers are alike. A dense layer is a matrix (outputs, inputs), with a bias where `has_biases`;
/// a norm has a scale, with a shift where `has_biases`.
struct PublishedModel {
  const char* name;
  std::size_t layers, hidden;
  std::size_t keys;  ///< outputs of the keys and of the values: less than `hidden` where heads share them
  std::size_t feed_forward;
  bool is_gated;  ///< the feed-forward part has three matrices in place of two
  bool has_biases;
  std::array<std::size_t, 3> tables;  ///< rows of each; 0 for none
  std::size_t patch;                  ///< inputs of the dense layer that reads an image's patches; 0 for none
  std::size_t head;                   ///< outputs of the dense layer at the end; 0 for none, or for the first table
};

// clang-format off
inline constexpr std::array published_models{
    // name                    layers  hidden  keys  ff     gated  biases  tables            patch  head
    // Devlin et al., NAACL 2019, with its pooling layer
    PublishedModel{"bert_large",  24,  1024,  1024,  4096,  false, true,  {30522, 512, 2},     0,   1024},
    // Radford et al. 2019, Table 2: the smallest and the largest
    PublishedModel{"gpt2",        12,   768,   768,  3072,  false, true,  {50257, 1024, 0},    0,      0},
    PublishedModel{"gpt2_xl",     48,  1600,  1600,  6400,  false, true,  {50257, 1024, 0},    0,      0},
    // Dosovitskiy et al., ICLR 2021, Table 1: patches of 16 x 16 pixels, 1000 classes
    PublishedModel{"vit_large",   24,  1024,  1024,  4096,  false, true,  {1, 197, 0},       768,   1000},
    // Grattafiori et al. 2024 (arXiv 2407.21783), Table 3
    PublishedModel{"llama3_8b",   32,  4096,  1024, 14336,  true,  false, {128256, 0, 0},      0, 128256},
    PublishedModel{"llama3_70b",  80,  8192,  1024, 28672,  true,  false, {128256, 0, 0},      0, 128256},
};
// clang-format on

inline std::vector<std::string> published_model_names() {
  std::vector<std::string> names;
  for (const PublishedModel& model : published_models) names.emplace_back(model.name);
  return names;
}

}  // namespace onebit::config
