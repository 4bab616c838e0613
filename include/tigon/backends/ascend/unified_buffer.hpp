// A vector core's scratch memory and the loops over tiles in it: copy a block of every operand in, run row programs on
// the copies, copy the results out.
//
//   ub::for_row_blocks<plan>(ctx, x.rows, x.cols, plan::cut_of(x.cols),
//       [=](auto& core, auto& xt, auto& yt) {                       // for every block of rows
//         core.pass(ub::reads(xt), ub::writes(yt), [=] TIGON_LAMBDA(auto row, auto xv, auto yv) {
//           // For every row of every block of columns.
//           row.map(tigon::reads(xv), tigon::writes(yv), [](auto v) { return v + v; });
//         });
//       },
//       x, y);
//
// The words of unified_buffer/:
//   core     a vector core, simulated by the thread that runs a program on it
//   program  what runs on one core at a time; as many as the backend's cores and the operator's rule say
//   block    rows and columns of an operand that are in the buffer at a time; some rows of all columns: a block of rows
//   tile     the memory of a block in the buffer
//   strip    the blocks of a block of columns, in every so many-th block of rows
//   places   of a tile: one, or two where a block is copied in while lanes compute on the one before
//   guard    bytes behind every tile whose damage is found
//   evict    a hint that goes with every copy: when its lines may leave the cache that the cores share
//   ledger   what a backend records of every program: bytes taken and copied, and whether the guards are intact
//
// Which blocks a program works on depends on shapes alone, so results do not depend on the number of threads. All tiles
// of a kernel exist at the same time; that they fit is known to the compiler.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP

#include <tigon/backends/ascend/unified_buffer/loops.hpp>
#include <tigon/backends/ascend/unified_buffer/maps.hpp>
#include <tigon/backends/ascend/unified_buffer/partials.hpp>
#include <tigon/backends/ascend/unified_buffer/program.hpp>
#include <tigon/backends/ascend/unified_buffer/row_loops.hpp>
#include <tigon/backends/ascend/unified_buffer/row_programs.hpp>
#include <tigon/backends/ascend/unified_buffer/tiles.hpp>
#include <tigon/backends/ascend/unified_buffer/vector_core.hpp>

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP
