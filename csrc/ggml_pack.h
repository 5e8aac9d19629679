// Plane content -> stored ggml blocks: the inverse of canonical_row, for types that have one.
//
// TQ1_0 and the types with vector codebooks have several encodings of the same values, so none.
#pragma once

#include "ggml_blocks.h"

namespace culet::ggml {

// Whether `pack_row` knows the type; a type of plain floating-point numbers has no planes.
bool can_pack(int ggml_id);

// Writes the blocks of `num_values` values (whole blocks of a type that can be packed).
void pack_row(int ggml_id, const PlaneRow& row, int64_t num_values, uint8_t* dst);

}  // namespace culet::ggml
