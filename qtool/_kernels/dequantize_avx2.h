/* The AVX2 row of dequantize.h: dequantize_loops.h as the compiler vectorises it for ymm registers. */
#ifndef QT_DEQUANTIZE_AVX2_H
#define QT_DEQUANTIZE_AVX2_H

#define QT_TARGET __attribute__((target("avx2")))
#define QT_FN(name) name##__avx2
#include "dequantize_loops.h"
#undef QT_FN
#undef QT_TARGET

static const qt_dequantize qt_dequantize_avx2 = {
    "dequantize__avx2", QT_ISA_AVX2, qt_singles__avx2, qt_halves__avx2, qt_unpack__avx2,
};

#endif
