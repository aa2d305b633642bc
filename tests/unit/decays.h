// What unit tests go through: every kind of decay.
#pragma once

#include "core/problem.h"

namespace lasp {

inline constexpr Decay kDecays[] = {Decay::kNone, Decay::kHead, Decay::kScalar, Decay::kChannel};

}  // namespace lasp
