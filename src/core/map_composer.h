// What the exchange asks of the device that its maps lie on. The CPU does it before the call returns; a GPU
// enqueues it on the stream.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/affine_map.h"

namespace lasp {

class MapComposer {
 public:
  virtual ~MapComposer() = default;

  // How many later maps compose() takes at once.
  virtual size_t most_composed() const = 0;
  // For each of the later maps in turn, earliest first:
  //   to.state      = later.transition * earlier.state + later.state     on the slices [begin, end)
  //   to.transition = later.transition * earlier.transition              all of it, unless to.transition is null
  // and the next one is composed onto that. `to` may be the last of the later maps, or `earlier`. Where there is no
  // later map, the states alone are copied. A null transition of a later map is the identity.
  virtual void compose(lasp_stream stream, AffineMapView to, std::span<const AffineMapView> later,
                       AffineMapView earlier, int64_t begin, int64_t end) = 0;
  // Writes a transition that all ranks can work out. `log_decay` is [H] in the maps' memory for per-head decay,
  // else null.
  virtual void fill_known_transition(lasp_stream stream, float *transition, const KnownTransition &known,
                                     const float *log_decay) = 0;
};

}  // namespace lasp
