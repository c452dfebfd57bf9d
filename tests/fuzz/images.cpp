/// \file images.cpp
/// Fuzzes the reader of labelled images. The last bytes choose what becomes of the images, the rest are a file of
/// images to train on, one to validate with, and one of labels, which belongs to both or to none.

#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <string>
#include <tuple>

#include "data/images/image_samples.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace onebit;
  FuzzedDataProvider bytes(data, size);
  data::ImageOptions options;
  options.crop = bytes.ConsumeBool();
  options.flip = bytes.ConsumeBool();
  if (bytes.ConsumeBool()) options.scaling = data::PixelScaling::symmetric;
  const bool has_labels = bytes.ConsumeBool();
  const std::string training = bytes.ConsumeRandomLengthString(), validation = bytes.ConsumeRandomLengthString(),
                    labels = bytes.ConsumeRemainingBytesAsString();
  for (const auto& [name, content, files] : {std::tuple{std::string("training"), training, &options.training},
                                             std::tuple{std::string("validation"), validation, &options.validation}}) {
    *files = {fuzz::scratch() / (name + (has_labels ? "_images" : ""))};
    fuzz::write_file(files->front(), content);
    fuzz::write_file(fuzz::scratch() / (name + "_labels"), labels);
  }

  fuzz::refuses_or_reads([&] {
    const data::ImageSamples samples(options, 1);
    data::ImageBatch batch;
    for (const bool is_training : {true, false}) {
      if (is_training) {
        samples.draw(1, 0, 3, batch);
      } else {
        samples.draw_validation(0, 1, batch);
      }
      fuzz::expect(batch.pixels.size() == batch.labels.size() * samples.extents().size(), "images are whole");
      for (const float pixel : batch.pixels) fuzz::expect(std::isfinite(pixel), "pixels are finite");
      for (const int label : batch.labels)
        fuzz::expect(label >= 0 && static_cast<std::size_t>(label) < samples.classes().size(), "labels are classes");
    }
  });
  return 0;
}
