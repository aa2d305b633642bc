// What LASP_LINK in the environment says of the link: `lasp-bench --calibrate` prints such a line.
#pragma once

#include <array>

#include "exchange/cost_model.h"

namespace lasp {

struct LinkNumber {
  const char *name;
  double Link::*value;
  bool may_be_zero;
};
inline constexpr std::array kLinkNumbers = {
    LinkNumber{"latency_us", &Link::latency_us, false},   LinkNumber{"bandwidth_gbs", &Link::bandwidth_gbs, false},
    LinkNumber{"round_us", &Link::round_us, true},        LinkNumber{"fold_us", &Link::fold_us, true},
    LinkNumber{"fold_gbs", &Link::fold_gbs, true},        LinkNumber{"dense_us", &Link::dense_us, true},
    LinkNumber{"dense_tflops", &Link::dense_tflops, true}};

struct GivenLink {
  Link link;
  std::array<bool, kLinkNumbers.size()> given{};

  // Puts what is given in the place of what is there. Whether that was latency or bandwidth.
  bool replace(Link &there) const;
};

// Throws Error, LASP_ERROR_INVALID_ARGUMENT, for what is not "name=number,name=number". "": nothing is given.
GivenLink parse_link(const char *text);
// That of LASP_LINK; nothing where it is not set.
GivenLink link_by_environment();

}  // namespace lasp
