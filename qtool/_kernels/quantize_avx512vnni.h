/* The AVX-512 row of quantize.h (F, BW, DQ, VL; no VNNI instruction).
 *
 * 8 bits and fewer from float32, one scale per run or per block: 64 elements a turn, in registers
 *
 *     q' = x * r, r = 1/s        vmulps instead of vdivps, which would take 16 cycles for 16 elements
 *     c  = min(max(q', lo), hi)  vmaxps returns its second operand for a NaN: lo
 *     d  = c - rint(c)           vreduceps; the largest |d| of the 64 by vrangeps
 *     if |d| >= near             some quotient may be on the wrong side of a tie: divide these 64 after all
 *     codes                      vcvtps2dq (to nearest even), vpackssdw, + z, & mask, vpackuswb, vpermd
 *
 * Exact, by this argument. Let |s| be in [2^-100, 2^100], so that r is normal, u = 2^-24, and q = fl(x/s) the quotient
 * that ONNX asks for. r = (1/s)(1+e1), q' = (x/s)(1+e1)(1+e2), q = (x/s)(1+e3) with |e| <= u, hence |q' - q| <= 3.001 u
 * |x/s|. (If q' or q is subnormal or zero, both are below 2^-125 and round to 0; where q' overflows, |x/s| > 2^127,
 * and both clamp to the same bound.) The bounds lo = qmin - z and hi = qmax - z are integers of magnitude <= F <= 510.
 * rint of the clamped q' and q differ only if a tie t = k + 1/2 within [lo, hi] lies between them or on one of them.
 * Then |q' - t| <= 3.001 u |x/s| < F 2^-22, as |x/s| < |t| (1 + 2^-21) and |t| < F. That is |d| > 1/2 - F 2^-22, and
 * near = 1/2 - F 2^-21 (rounded: an error of 2^-26) catches it. Scales out of that range, zero, Inf, NaN: near is -1,
 * which divides always.
 *
 * The reciprocals of 16 blocks are one division. Elements beyond a multiple of 64 go 16 at a time under a mask by the
 * same steps. x is prefetched 4 KB ahead: it is read once, and the hardware stops at the end of each page.
 */
#ifndef QT_QUANTIZE_AVX512VNNI_H
#define QT_QUANTIZE_AVX512VNNI_H

#include <immintrin.h>

#define QT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define QT_FN(name) name##__avx512vnni

QT_TARGET static void qt_halves_to_floats__avx512vnni(const uint16_t *x, ptrdiff_t n, float *t) {
    for (ptrdiff_t i = 0; i < n; i += 16) {
        const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
        _mm512_mask_storeu_ps(t + i, k, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, x + i)));
    }
}

#define QT_OWN_LOAD
#define QT_OWN_CODES8
#include "quantize_loops.h"
#undef QT_OWN_CODES8
#undef QT_OWN_LOAD

#define QT_PREFETCH_FLOATS 1024

/* One scale, or one block. */
QT_TARGET QT_INLINE void qt_codes8_block__avx512vnni(const float *x, float scale, float reciprocal, int32_t zero,
                                                     qt_integer type, ptrdiff_t n, uint8_t *y) {
    const float below = (float)(type.qmin - zero), above = (float)(type.qmax - zero);
    const float size = fabsf(scale), largest = -below > above ? -below : above;
    const float threshold = size >= 0x1p-100f && size <= 0x1p100f ? 0.5f - largest * 0x1p-21f : -1.0f;
    const __m512 lo = _mm512_set1_ps(below), hi = _mm512_set1_ps(above), s = _mm512_set1_ps(scale);
    const __m512 r = _mm512_set1_ps(reciprocal), near = _mm512_set1_ps(threshold);
    const __m512i z16 = _mm512_set1_epi16((short)zero), mask16 = _mm512_set1_epi16((short)type.mask);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    ptrdiff_t i = 0;
    for (; i + 64 <= n; i += 64) {
        for (int line = 0; line < 64; line += 16)
            _mm_prefetch((const char *)(x + i + line + QT_PREFETCH_FLOATS), _MM_HINT_T0);
        const __m512 x0 = _mm512_loadu_ps(x + i), x1 = _mm512_loadu_ps(x + i + 16);
        const __m512 x2 = _mm512_loadu_ps(x + i + 32), x3 = _mm512_loadu_ps(x + i + 48);
        __m512 c0 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x0, r), lo), hi);
        __m512 c1 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x1, r), lo), hi);
        __m512 c2 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x2, r), lo), hi);
        __m512 c3 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x3, r), lo), hi);
        const __m512 d01 = _mm512_range_ps(_mm512_reduce_ps(c0, 0), _mm512_reduce_ps(c1, 0), 11); /* larger |d| */
        const __m512 d23 = _mm512_range_ps(_mm512_reduce_ps(c2, 0), _mm512_reduce_ps(c3, 0), 11);
        if (_mm512_cmp_ps_mask(_mm512_max_ps(d01, d23), near, _CMP_GE_OQ)) {
            c0 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x0, s), lo), hi);
            c1 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x1, s), lo), hi);
            c2 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x2, s), lo), hi);
            c3 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x3, s), lo), hi);
        }
        __m512i p = _mm512_packs_epi32(_mm512_cvtps_epi32(c0), _mm512_cvtps_epi32(c1));
        __m512i q = _mm512_packs_epi32(_mm512_cvtps_epi32(c2), _mm512_cvtps_epi32(c3));
        p = _mm512_and_si512(_mm512_add_epi16(p, z16), mask16);
        q = _mm512_and_si512(_mm512_add_epi16(q, z16), mask16);
        _mm512_storeu_si512(y + i, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(p, q)));
    }
    for (; i < n; i += 16) {
        const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
        const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
        _mm_prefetch((const char *)(x + i + QT_PREFETCH_FLOATS), _MM_HINT_T0);
        __m512 c = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(v, r), lo), hi);
        if (_mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_reduce_ps(c, 0)), near, _CMP_GE_OQ))
            c = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(v, s), lo), hi);
        const __m512i codes = _mm512_add_epi32(_mm512_cvtps_epi32(c), _mm512_set1_epi32(zero));
        _mm512_mask_cvtepi32_storeu_epi8(y + i, k, _mm512_and_si512(codes, _mm512_set1_epi32(type.mask)));
    }
}

/* A scale for each element: true division, 16 at a time. */
QT_TARGET static void qt_codes8_each__avx512vnni(const float *x, const float *s, const int32_t *z, qt_integer type,
                                                 ptrdiff_t n, uint8_t *y) {
    const __m512i qmin = _mm512_set1_epi32(type.qmin), qmax = _mm512_set1_epi32(type.qmax);
    const __m512i mask = _mm512_set1_epi32(type.mask);
    for (ptrdiff_t i = 0; i < n; i += 16) {
        const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
        const __m512i zero = _mm512_maskz_loadu_epi32(k, z + i);
        const __m512 lo = _mm512_cvtepi32_ps(_mm512_sub_epi32(qmin, zero));
        const __m512 hi = _mm512_cvtepi32_ps(_mm512_sub_epi32(qmax, zero));
        _mm_prefetch((const char *)(x + i + QT_PREFETCH_FLOATS), _MM_HINT_T0);
        __m512 c = _mm512_div_ps(_mm512_maskz_loadu_ps(k, x + i), _mm512_maskz_loadu_ps(k, s + i));
        c = _mm512_min_ps(_mm512_max_ps(c, lo), hi);
        const __m512i codes = _mm512_add_epi32(_mm512_cvtps_epi32(c), zero);
        _mm512_mask_cvtepi32_storeu_epi8(y + i, k, _mm512_and_si512(codes, mask));
    }
}

QT_TARGET static void qt_codes8__avx512vnni(const float *x, const float *s, const int32_t *z, ptrdiff_t block,
                                            int precision, qt_integer type, ptrdiff_t n, uint8_t *y) {
    float reciprocals[16];
    if (precision != QT_FLOAT32) {
        qt_codes8_loops__avx512vnni(x, s, z, block, precision, type, n, y);
        return;
    }
    if (block == 1) {
        qt_codes8_each__avx512vnni(x, s, z, type, n, y);
        return;
    }
    for (ptrdiff_t at = 0; n > 0; x += block, y += block, n -= block, ++at) {
        if (at % 16 == 0) {
            const ptrdiff_t left = n / block + (n % block != 0);
            const __mmask16 k = left < 16 ? (__mmask16)((1u << left) - 1) : (__mmask16)0xFFFF;
            const __m512 one = _mm512_set1_ps(1.0f);
            _mm512_storeu_ps(reciprocals, _mm512_div_ps(one, _mm512_mask_loadu_ps(one, k, s + at)));
        }
        qt_codes8_block__avx512vnni(x, s[at], reciprocals[at % 16], z[at], type, n < block ? n : block, y);
    }
}

#undef QT_FN
#undef QT_TARGET

static const qt_quantize qt_quantize_avx512vnni = {
    "quantize__avx512vnni", QT_ISA_AVX512VNNI, qt_load__avx512vnni, qt_codes8__avx512vnni, qt_codes16__avx512vnni,
    qt_floats__avx512vnni, qt_range__avx512vnni, qt_pack__avx512vnni,
};

#endif
