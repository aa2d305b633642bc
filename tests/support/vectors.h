// The given test vectors: folders of case.json and .npy files made by reference/make_vectors.py.
#pragma once

#include <string>
#include <vector>

#include "support/case.h"

namespace lasp_test {

struct Vector {
  Case problem;
  CaseData data;
  Expected expected;
};

// All of them, by name; read once. The folder is LASP_TEST_VECTORS in the environment, else that of the source
// tree.
const std::vector<Vector> &all_vectors();

}  // namespace lasp_test
