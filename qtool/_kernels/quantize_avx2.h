/* The AVX2 row of quantize.h: quantize_loops.h as the compiler vectorises it for ymm registers.
 *
 * Division is vdivps: the quotient is that of the scalar row to the last bit. float16 is converted by integer
 * operations, so that F16C, which AVX2 does not promise, is not needed.
 */
#ifndef QT_QUANTIZE_AVX2_H
#define QT_QUANTIZE_AVX2_H

#define QT_TARGET __attribute__((target("avx2")))
#define QT_FN(name) name##__avx2
#include "quantize_loops.h"
#undef QT_FN
#undef QT_TARGET

static const qt_quantize qt_quantize_avx2 = {
    "quantize__avx2", QT_ISA_AVX2, qt_load__avx2, qt_codes8__avx2, qt_codes16__avx2, qt_floats__avx2,
    qt_range__avx2, qt_pack__avx2,
};

#endif
