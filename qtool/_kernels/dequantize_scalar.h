/* The portable row of dequantize.h: dequantize_loops.h as the compiler vectorises it for the baseline. */
#ifndef QT_DEQUANTIZE_SCALAR_H
#define QT_DEQUANTIZE_SCALAR_H

#define QT_TARGET
#define QT_FN(name) name##__scalar
#include "dequantize_loops.h"
#undef QT_FN
#undef QT_TARGET

static const qt_dequantize qt_dequantize_scalar = {
    "dequantize__scalar", QT_ISA_SCALAR, qt_singles__scalar, qt_halves__scalar, qt_unpack__scalar,
};

#endif
