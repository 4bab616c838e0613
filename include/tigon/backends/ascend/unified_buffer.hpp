// A vector core's scratch memory and the loops over tiles in it: copy a block of every operand in, run row programs on
// the copies, copy the results out.
//
//   ub::for_row_blocks<plan>(ctx, x.rows, x.cols, plan::cut_of(x.cols),
//       [=](auto& core, auto& xt, auto& yt) {                       // for every block of rows
//         core.pass(ub::reads(xt), ub::writes(yt), [=] TIGON_LAMBDA(auto row, auto xv, auto yv) {
//           row.map(tigon::reads(xv), tigon::writes(yv), [](auto v) { return v + v; });          // for every row of every block of columns
//         });
//       },
//       x, y);
//
// A core is played by the thread that runs a program. Programs are as many as the backend's cores and the operator's
// rule say, and which blocks a program works on depends on shapes alone, so results do not depend on the number of
// threads. All tiles of a kernel exist at the same time, with a guard zone behind each of them; that they fit is known
// to the compiler, and every program reports to the backend's ledger.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP

#include <tigon/backends/ascend/unified_buffer/loops.hpp>
#include <tigon/backends/ascend/unified_buffer/maps.hpp>
#include <tigon/backends/ascend/unified_buffer/partials.hpp>
#include <tigon/backends/ascend/unified_buffer/row_programs.hpp>
#include <tigon/backends/ascend/unified_buffer/tiles.hpp>
#include <tigon/backends/ascend/unified_buffer/vector_core.hpp>

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP
