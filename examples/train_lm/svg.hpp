// The loss curves as a picture that needs no other file.
#pragma once

#include <string>

#include "report.hpp"

namespace train_lm {

// The curves of one or two runs; for two, their difference beside its bound below.
std::string loss_svg(const Report &report);

}  // namespace train_lm
