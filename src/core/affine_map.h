// What a run of tokens does to the state that enters it: for each batch row and head the affine map
//
//     S_out = M S_in + S        M: the run's transition, S: its own end state (its state from zero)
//
// The tokens of a rank are such a run, and so are those of several ranks one after the other: their maps composed.
// Here, and nowhere else, stands what kinds of transition there are. Whoever moves maps sees floats.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace lasp {

// M of a row and head, a K x K matrix. Where the sequence that leaves a run also begins in it (`reset`), M is zero.
enum class Transition : int32_t {
  kIdentity,  // I
  kHead,      // a power of the head's decay: the number of tokens tells which
  kScalar,    // a multiple of I that depends on the data
  kDiagonal,  // one decay for each key channel; depends on the data
};

// A map in memory, float32. The two parts lie one after the other, or each by itself.
//   state       [rows, H, K, V]
//   transition  [rows, H], or [rows, H, K] where it is diagonal: decays in the code of decay.h, so 0 where the row
//               resets and 1 where it has no tokens in the run
struct AffineMapView {
  float *state = nullptr;
  float *transition = nullptr;
};

// What tells a known transition: how many tokens its run has, and whether their map forgets what came before.
struct KnownTransition {
  bool reset = false;
  int64_t tokens = 0;
};

// The kind of a problem's maps, and their sizes.
struct AffineMap {
  Transition kind = Transition::kIdentity;
  int64_t rows = 0, heads = 0, head_dim_k = 0, head_dim_v = 0;

  int64_t state_floats() const { return rows * heads * head_dim_k * head_dim_v; }
  int64_t transition_floats() const;
  int64_t floats() const { return state_floats() + transition_floats(); }
  // A map [state | transition] in `floats()` floats.
  AffineMapView view(float *map) const { return {map, map + state_floats()}; }

  // Whether a rank can work out the transition of another: from token counts and resets, without its data. Any
  // other transition has to travel.
  bool is_known() const { return kind == Transition::kIdentity || kind == Transition::kHead; }

  // The state may be cut between its slices, and every piece be composed by itself: rows of K, each V floats.
  int64_t slices() const { return rows * heads * head_dim_k; }
  int64_t slice_floats() const { return head_dim_v; }
};

AffineMap affine_map_of(const Problem &problem);

// The arithmetic of transitions on the CPU; `to` may be one of the others. `log_decay` is [H] for kHead, else null.
void compose_transitions(const AffineMap &map, float *to, const float *later, const float *earlier);
void fill_known_transition(const AffineMap &map, float *to, const KnownTransition &known, const float *log_decay);

}  // namespace lasp
