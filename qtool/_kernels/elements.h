/* One element at a time: the conversions and roundings that every loop over elements is made of.
 *
 * They have no branches, so that a loop over them vectorises, and are always inlined, so that they take the
 * instruction set of the loop. Why they are exact:
 *
 *   (q + 12582912) - 12582912 is rint(q) for |q| <= 2^22; after the clamp |q| <= 65535 + 65535.
 *   |f| + 1.5 * 2^(23+e-m) rounds |f| to m bits after the leading one of 2^e: that is the rounding to a small float,
 *   and the sum's low bits are its mantissa. The float16 quotient is a float32 quotient rounded once more, which is
 *   exact (24 >= 2p + 2; reference.quantize_linear has the argument for subnormals). Products for a half-precision
 *   output are exact in double and reach float32 by rounding to odd, so that the last rounding is the only one.
 */
#ifndef QT_ELEMENTS_H
#define QT_ELEMENTS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define QT_INLINE static inline __attribute__((always_inline))
#else
#define QT_INLINE static __forceinline
#endif

/* Element types, numbered as _SOURCES of kernels/elementwise.py. A table holds the value of each byte; the values of
 * QT_TABLE4 depend on the low four bits only. */
enum {
    QT_FLOAT32, QT_FLOAT16, QT_BFLOAT16, QT_INT32, QT_INT8, QT_UINT8, QT_INT16, QT_UINT16, QT_TABLE, QT_TABLE4,
};

/* An integer type: its bounds, and the bits of a code. */
typedef struct {
    int32_t qmin, qmax, mask;
} qt_integer;

/* A small float: dtypes.FloatFormat, with what the loops derive from it. */
typedef struct {
    uint32_t mantissa, min_exponent, cap, max_code, overflow, nan, sign_shift, nan_sign, zero_sign;
} qt_small_float;

QT_INLINE uint32_t qt_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

QT_INLINE float qt_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

QT_INLINE float qt_from_half(uint16_t h) {
    const uint32_t u = (uint32_t)(h & 0x7FFF) << 13;
    const float subnormal = (float)(int32_t)(h & 0x3FF) * qt_float(0x33800000); /* 2^-24 */
    const uint32_t normal = h & 0x7C00 ? u + 0x38000000 : qt_bits(subnormal);   /* the bias goes from 15 to 127 */
    const uint32_t any = (h & 0x7C00) == 0x7C00 ? u | 0x7F800000 : normal;
    return qt_float(any | (uint32_t)(h & 0x8000) << 16);
}

QT_INLINE float qt_from_bfloat(uint16_t h) { return qt_float((uint32_t)h << 16); }

QT_INLINE uint16_t qt_to_bfloat(float f) {
    const uint32_t u = qt_bits(f);
    const uint32_t rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16;
    const uint32_t nan = ((u >> 16) & 0x8000) | 0x7FC0;
    return (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

QT_INLINE float qt_round_bfloat(float f) { return qt_from_bfloat(qt_to_bfloat(f)); }

/* f rounded to float16, as a float32. */
QT_INLINE float qt_round_half(float f) {
    const uint32_t u = qt_bits(f), magnitude = u & 0x7FFFFFFF;
    const uint32_t capped = magnitude < 0x48000000 ? magnitude : 0x48000000; /* 2^17 */
    const uint32_t exponent = capped >> 23 > 113 ? capped >> 23 : 113;       /* 2^-14, the least normal */
    const float magic = qt_float(((exponent + 13) << 23) | 0x400000);
    uint32_t rounded = qt_bits((qt_float(capped) + magic) - magic);
    rounded = rounded > 0x477FE000 ? 0x7F800000 : rounded; /* 65504 */
    rounded = magnitude > 0x7F800000 ? magnitude : rounded;
    return qt_float(rounded | (u & 0x80000000));
}

QT_INLINE uint16_t qt_to_half(float f) {
    const uint32_t u = qt_bits(qt_round_half(f)); /* now every case is exact */
    const uint32_t magnitude = u & 0x7FFFFFFF;
    const float small = qt_float(magnitude < 0x38800000 ? magnitude : 0);
    const uint32_t subnormal = (uint32_t)(int32_t)(small * 16777216.0f);
    uint32_t h = magnitude >= 0x38800000 ? (magnitude - 0x38000000) >> 13 : subnormal;
    h = magnitude == 0x7F800000 ? 0x7C00 : h;
    h = magnitude > 0x7F800000 ? 0x7E00 : h;
    return (uint16_t)(h | ((u >> 16) & 0x8000));
}

/* d as a float32 whose last bit is set if bits were lost: rounding it again rounds d once. */
QT_INLINE float qt_round_to_odd(double d) {
    const float f = (float)d;
    uint32_t u = qt_bits(f);
    u = fabs((double)f) > fabs(d) ? u - 1 : u;
    u = (double)f != d ? u | 1 : u;
    return d == d ? qt_float(u) : f;
}

QT_INLINE float qt_round_precision(float q, int precision) {
    return precision == QT_FLOAT16 ? qt_round_half(q) : precision == QT_BFLOAT16 ? qt_round_bfloat(q) : q;
}

/* rint(q) within [lo, hi]; a NaN becomes lo. */
QT_INLINE int32_t qt_rint_within(float q, float lo, float hi) {
    q = q > lo ? q : lo;
    q = q < hi ? q : hi;
    return (int32_t)((q + 12582912.0f) - 12582912.0f);
}

/* Equation (1) for an integer: the bits of saturate(rint(x / s) + z). */
QT_INLINE int32_t qt_integer_code(float x, float s, int32_t z, int precision, qt_integer type) {
    const float q = qt_round_precision(x / s, precision);
    return (qt_rint_within(q, (float)(type.qmin - z), (float)(type.qmax - z)) + z) & type.mask;
}

/* Equation (1) for a small float: the code nearest to x / s + z, ties to the even code. A NaN has the sign of x,
 * whatever the processor gives to 0/0. z = -0 adds nothing, not even to the sign of a zero. */
QT_INLINE uint8_t qt_float_code(float x, float s, float z, int precision, qt_small_float form, uint32_t overflow) {
    const float q = qt_round_precision(qt_round_precision(x / s, precision) + z, precision);
    const uint32_t u = qt_bits(q), magnitude = u & 0x7FFFFFFF;
    const uint32_t capped = magnitude < form.cap ? magnitude : form.cap;
    const uint32_t exponent = capped >> 23 > form.min_exponent ? capped >> 23 : form.min_exponent;
    const uint32_t magic = ((exponent + 23 - form.mantissa) << 23) | 0x400000;
    uint32_t sign = (magnitude > 0x7F800000 ? qt_bits(x) : u) >> 31;
    uint32_t code =
        ((exponent - form.min_exponent) << form.mantissa) + qt_bits(qt_float(capped) + qt_float(magic)) - magic;
    code = code <= form.max_code ? code : overflow;
    code = magnitude <= 0x7F800000 ? code : form.nan;
    sign &= (form.nan_sign | (uint32_t)(code != form.nan)) & (form.zero_sign | (uint32_t)(code != 0));
    return (uint8_t)(code | (sign << form.sign_shift));
}

#endif
