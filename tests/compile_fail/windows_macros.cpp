// After <windows.h>, whose macros have short names.
// errors: 2
// expect: tigon: min and max are macros, as of <windows.h>; define NOMINMAX before it is included
// flags: -DTIGON_BACKEND=generic
#include "prelude.hpp"

#define near
#define far
#define small char
#define hyper __int64
#define interface struct
#define pascal __stdcall
#define cdecl __cdecl
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
#define TRUE 1
#define FALSE 0
#define ERROR 0
#define IGNORE 0
#define INFINITE 0xffffffff
#define STRICT 1
#define DELETE (0x00010000L)
#define DOMAIN 1
#define OVERFLOW 3
#define UNDERFLOW 4
#ifdef SHOULD_NOT_COMPILE
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#endif
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
