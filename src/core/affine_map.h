// What a run of tokens does to the state that enters it: for each row and head the affine map
//
//     S_out = M S_in + S        M: the run's transition, S: its own end state (its state from zero)
//
// The tokens of a rank are such a run, and so are those of several ranks one after the other: their maps composed.
// Here, and nowhere else, stands what kinds of transition there are. Whoever moves maps sees floats.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace lasp {

// M of a row and head, a K x K matrix. Where the sequence that leaves a run also begins in it (a reset), M is zero.
enum class Transition : int32_t {
  kIdentity,  // I
  kHead,      // I times a power of the head's decay: the number of tokens tells which
  kScalar,    // I times a number that depends on the data
  kDiagonal,  // one decay for each key channel; depends on the data
  kDense      // any matrix, as the delta rule makes them; depends on the data
};

// A map in memory, float32. The two parts lie one after the other, or each by itself.
//   state       [rows, H, K, V]
//   transition  kIdentity, kHead, kScalar  [rows, H]        decays in the code of decay.h: 0 where the row resets,
//               kDiagonal                  [rows, H, K]     1 where it has no tokens in the run
//               kDense                     [rows, H, K, K]  M[i][j], the numbers themselves
struct AffineMapView {
  float *state = nullptr;
  float *transition = nullptr;
};

// What tells a known transition: how many tokens its run has, and whether their map forgets what came before.
struct KnownTransition {
  bool reset = false;
  int64_t tokens = 0;
};

// Part of a map: the slices [begin, end).
struct Slices {
  int64_t begin = 0, end = 0;
};

enum class Axis : int32_t { kHeads, kKeys, kValues };

// The kind of a problem's maps, and their sizes.
struct AffineMap {
  Transition kind = Transition::kIdentity;
  int64_t rows = 0, heads = 0, head_dim_k = 0, head_dim_v = 0;
  bool packed = false;  // where sequences begin, each rank knows of its own tokens only

  int64_t state_floats() const { return rows * heads * head_dim_k * head_dim_v; }
  int64_t transition_floats() const { return rows * heads * head_transition_floats(); }
  int64_t head_transition_floats() const;
  int64_t floats() const { return state_floats() + transition_floats(); }
  // A map [state | transition] in `floats()` floats.
  AffineMapView view(float *map) const { return {map, map + state_floats()}; }

  // Whether a rank can work out the transition of another from token counts alone. Any other transition has to
  // travel, and a packed one too.
  bool is_known() const { return !packed && (kind == Transition::kIdentity || kind == Transition::kHead); }

  // Whether maps may be cut along an axis into parts that are composed and applied each by itself. A dense
  // transition mixes the rows of K, and nothing mixes heads or the columns of V.
  bool may_cut(Axis axis) const { return axis != Axis::kKeys || kind != Transition::kDense; }
  // The smallest parts that lie in one piece of memory: rows of K where those may be cut, else whole heads.
  int64_t slices() const { return rows * heads * head_slices(); }
  int64_t slice_floats() const { return head_dim_v * (may_cut(Axis::kKeys) ? 1 : head_dim_k); }
  Slices all() const { return {0, slices()}; }
  // Those of one head, of one row; and where the transition of such a head begins.
  int64_t head_slices() const { return may_cut(Axis::kKeys) ? head_dim_k : 1; }
  int64_t transition_at(int64_t slice) const { return slice / head_slices() * head_transition_floats(); }
  // One of so many pieces of about the same size; pieces <= slices().
  Slices piece(int32_t index, int32_t pieces) const {
    return {slices() * index / pieces, slices() * (index + 1) / pieces};
  }
  // The same of whole heads; where there are fewer of them, some pieces are empty.
  Slices piece_of_heads(int32_t index, int32_t pieces) const {
    const int64_t all_heads = rows * heads;
    return {all_heads * index / pieces * head_slices(), all_heads * (index + 1) / pieces * head_slices()};
  }

  // The arithmetic on the CPU. Products and sums are in double and rounded once, to float32: a sum of K products
  // would lose log2(K) bits more in float32, and maps of many ranks are composed one after the other.
  //
  // The map that changes nothing.
  void set_identity(const AffineMapView &map) const;
  // to = M state + S on `part`; `to` may be the map's own state.
  void apply(float *to, const AffineMapView &map, const float *state, Slices part) const;
  // to = later after earlier: the states on `part`, and all of the transition unless to.transition is null. `to`
  // may be `later`.
  void compose(const AffineMapView &to, const AffineMapView &later, const AffineMapView &earlier,
               Slices part) const;
  void compose_transitions(float *to, const float *later, const float *earlier) const;
  // A transition that is_known(). `log_decay` is [H] for kHead, else null.
  void fill_known_transition(float *to, const KnownTransition &known, const float *log_decay) const;
};

AffineMap affine_map_of(const Problem &problem);

}  // namespace lasp
