// The plans of the row kernels of every operator (tigon/rows/lanes/schedule.hpp), for the default backend and its core.
#ifndef TIGON_TOOLS_TIGON_INFO_PLANS_HPP
#define TIGON_TOOLS_TIGON_INFO_PLANS_HPP

void print_plans();
/// And how those made of products cut them.
void print_product_plans();

#endif  // TIGON_TOOLS_TIGON_INFO_PLANS_HPP
