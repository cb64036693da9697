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
 * The reciprocals of 16 blocks are one division, and blocks of 32 go in pairs. Elements beyond a multiple of 64 go 16 at
 * a time under a mask by the same steps.
 *
 * What takes the time is waiting for memory. A long run is read at four places at once, each its own stream of the
 * hardware's prefetcher (16M elements: 4.8 ms at one place, 3.5 ms at four); x is asked for 2 KB ahead, because the
 * hardware stops at the end of each page, and so are the lines of y that will be overwritten (1M: 0.23 ms without,
 * 0.21 ms with, which is the time of a loop that only reads x and writes y).
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
#define QT_OWN_CODES
#include "quantize_loops.h"
#undef QT_OWN_CODES
#undef QT_OWN_LOAD

#define QT_PREFETCH_FLOATS 512
#define QT_PREFETCH_CODES 1024 /* y: a store would otherwise wait for the line that it overwrites */

enum {
    QT_STREAMS = 4,
    QT_STREAMED_BLOCK = 256, /* elements of a block from which four blocks are read at once, */
    QT_STREAMED_RUN = 8192,  /* and of one scale from which it is read in quarters */
};

/* What the elements of one scale have in common. */
typedef struct {
    __m512 s, r, lo, hi, near;
    __m512i z16;
} qt_scale__avx512vnni;

QT_TARGET QT_INLINE qt_scale__avx512vnni qt_scale_of__avx512vnni(float scale, float reciprocal, int32_t zero,
                                                                 qt_integer type) {
    const float below = (float)(type.qmin - zero), above = (float)(type.qmax - zero);
    const float size = fabsf(scale), largest = -below > above ? -below : above;
    const float threshold = size >= 0x1p-100f && size <= 0x1p100f ? 0.5f - largest * 0x1p-21f : -1.0f;
    const qt_scale__avx512vnni c = {
        _mm512_set1_ps(scale), _mm512_set1_ps(reciprocal), _mm512_set1_ps(below),
        _mm512_set1_ps(above), _mm512_set1_ps(threshold),  _mm512_set1_epi16((short)zero),
    };
    return c;
}

/* 64 elements. */
QT_TARGET QT_INLINE void qt_turn__avx512vnni(const float *x, const qt_scale__avx512vnni *c, __m512i mask16,
                                             uint8_t *y) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int line = 0; line < 64; line += 16)
        _mm_prefetch((const char *)(x + line + QT_PREFETCH_FLOATS), _MM_HINT_T0);
    _mm_prefetch((const char *)(y + QT_PREFETCH_CODES), _MM_HINT_T0);
    const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    const __m512 x2 = _mm512_loadu_ps(x + 32), x3 = _mm512_loadu_ps(x + 48);
    __m512 c0 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x0, c->r), c->lo), c->hi);
    __m512 c1 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x1, c->r), c->lo), c->hi);
    __m512 c2 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x2, c->r), c->lo), c->hi);
    __m512 c3 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x3, c->r), c->lo), c->hi);
    const __m512 d01 = _mm512_range_ps(_mm512_reduce_ps(c0, 0), _mm512_reduce_ps(c1, 0), 11); /* larger |d| */
    const __m512 d23 = _mm512_range_ps(_mm512_reduce_ps(c2, 0), _mm512_reduce_ps(c3, 0), 11);
    if (_mm512_cmp_ps_mask(_mm512_max_ps(d01, d23), c->near, _CMP_GE_OQ)) {
        c0 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x0, c->s), c->lo), c->hi);
        c1 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x1, c->s), c->lo), c->hi);
        c2 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x2, c->s), c->lo), c->hi);
        c3 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x3, c->s), c->lo), c->hi);
    }
    __m512i p = _mm512_packs_epi32(_mm512_cvtps_epi32(c0), _mm512_cvtps_epi32(c1));
    __m512i q = _mm512_packs_epi32(_mm512_cvtps_epi32(c2), _mm512_cvtps_epi32(c3));
    p = _mm512_and_si512(_mm512_add_epi16(p, c->z16), mask16);
    q = _mm512_and_si512(_mm512_add_epi16(q, c->z16), mask16);
    _mm512_storeu_si512(y, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(p, q)));
}

/* One scale, or one block. */
QT_TARGET static void qt_codes8_block__avx512vnni(const float *x, float scale, float reciprocal, int32_t zero,
                                                  qt_integer type, ptrdiff_t n, uint8_t *y) {
    const qt_scale__avx512vnni c = qt_scale_of__avx512vnni(scale, reciprocal, zero, type);
    const __m512i mask16 = _mm512_set1_epi16((short)type.mask);
    ptrdiff_t i = 0;
    for (; i + 64 <= n; i += 64) qt_turn__avx512vnni(x + i, &c, mask16, y + i);
    for (; i < n; i += 16) {
        const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
        const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
        _mm_prefetch((const char *)(x + i + QT_PREFETCH_FLOATS), _MM_HINT_T0);
        __m512 q = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(v, c.r), c.lo), c.hi);
        if (_mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_reduce_ps(q, 0)), c.near, _CMP_GE_OQ))
            q = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(v, c.s), c.lo), c.hi);
        const __m512i codes = _mm512_add_epi32(_mm512_cvtps_epi32(q), _mm512_set1_epi32(zero));
        _mm_mask_storeu_epi8(y + i, k, _mm512_cvtepi32_epi8(_mm512_and_si512(codes, _mm512_set1_epi32(type.mask))));
    }
}

/* The first elements of one scale, in quarters; returns how many it did, all but less than 260. */
QT_TARGET static ptrdiff_t qt_codes8_quarters__avx512vnni(const float *x, float scale, float reciprocal, int32_t zero,
                                                          qt_integer type, ptrdiff_t n, uint8_t *y) {
    const ptrdiff_t head = (ptrdiff_t)(((uintptr_t)0 - (uintptr_t)x) / 4 % 16);
    const ptrdiff_t step = (n - head) / (64 * QT_STREAMS) * 64;
    const qt_scale__avx512vnni c = qt_scale_of__avx512vnni(scale, reciprocal, zero, type);
    const __m512i mask16 = _mm512_set1_epi16((short)type.mask);
    qt_codes8_block__avx512vnni(x, scale, reciprocal, zero, type, head, y);
    for (ptrdiff_t i = head; i < head + step; i += 64)
        for (int j = 0; j < QT_STREAMS; ++j)
            qt_turn__avx512vnni(x + i + j * step, &c, mask16, y + i + j * step);
    return head + QT_STREAMS * step;
}

/* The first blocks of a run, one of each quarter at a time; returns how many blocks it did, all but three at most. */
QT_TARGET static ptrdiff_t qt_codes8_rows__avx512vnni(const float *x, const float *s, const int32_t *z,
                                                      ptrdiff_t block, qt_integer type, ptrdiff_t n, uint8_t *y) {
    const ptrdiff_t rows = n / block / QT_STREAMS, step = rows * block, whole = block / 64 * 64;
    const __m512i mask16 = _mm512_set1_epi16((short)type.mask);
    qt_scale__avx512vnni c[QT_STREAMS];
    for (ptrdiff_t row = 0; row < rows; ++row, x += block, y += block) {
        for (int j = 0; j < QT_STREAMS; ++j) {
            const ptrdiff_t at = row + j * rows;
            c[j] = qt_scale_of__avx512vnni(s[at], 1.0f / s[at], z[at], type);
        }
        for (ptrdiff_t i = 0; i < whole; i += 64)
            for (int j = 0; j < QT_STREAMS; ++j)
                qt_turn__avx512vnni(x + i + j * step, c + j, mask16, y + i + j * step);
        for (int j = 0; j < QT_STREAMS && whole < block; ++j) {
            const ptrdiff_t at = row + j * rows, i = whole + j * step;
            qt_codes8_block__avx512vnni(x + i, s[at], 1.0f / s[at], z[at], type, block - whole, y + i);
        }
    }
    return QT_STREAMS * rows;
}

/* What the elements of 16 blocks of 32 have in common. */
typedef struct {
    float s[16], r[16], lo[16], hi[16], near[16];
} qt_blocks__avx512vnni;

QT_TARGET QT_INLINE void qt_prepare__avx512vnni(const float *s, const int32_t *z, ptrdiff_t n, qt_integer type,
                                                qt_blocks__avx512vnni *b) {
    const __mmask16 k = n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xFFFF;
    const __m512 one = _mm512_set1_ps(1.0f), scale = _mm512_mask_loadu_ps(one, k, s), size = _mm512_abs_ps(scale);
    const __m512i zero = _mm512_maskz_loadu_epi32(k, z);
    const __m512 lo = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(type.qmin), zero));
    const __m512 hi = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(type.qmax), zero));
    const __m512 largest = _mm512_max_ps(_mm512_abs_ps(lo), _mm512_abs_ps(hi));
    const __m512 near = _mm512_sub_ps(_mm512_set1_ps(0.5f), _mm512_mul_ps(largest, _mm512_set1_ps(0x1p-21f)));
    const __mmask16 usable = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ) &
                             _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p100f), _CMP_LE_OQ);
    _mm512_storeu_ps(b->s, scale);
    _mm512_storeu_ps(b->r, _mm512_div_ps(one, scale));
    _mm512_storeu_ps(b->lo, lo);
    _mm512_storeu_ps(b->hi, hi);
    _mm512_storeu_ps(b->near, _mm512_mask_mov_ps(_mm512_set1_ps(-1.0f), usable, near));
}

/* Blocks of 32, two a turn; returns how many elements it did, all but the last block or two. */
QT_TARGET static ptrdiff_t qt_codes8_of32__avx512vnni(const float *x, const float *s, const int32_t *z,
                                                      qt_integer type, ptrdiff_t n, uint8_t *y) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i mask16 = _mm512_set1_epi16((short)type.mask);
    qt_blocks__avx512vnni b;
    ptrdiff_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const ptrdiff_t at = i / 32, j = at % 16;
        if (j == 0) qt_prepare__avx512vnni(s + at, z + at, n / 32 - at, type, &b);
        const __m512 r0 = _mm512_set1_ps(b.r[j]), lo0 = _mm512_set1_ps(b.lo[j]), hi0 = _mm512_set1_ps(b.hi[j]);
        const __m512 r1 = _mm512_set1_ps(b.r[j + 1]), lo1 = _mm512_set1_ps(b.lo[j + 1]);
        const __m512 hi1 = _mm512_set1_ps(b.hi[j + 1]);
        for (int line = 0; line < 64; line += 16)
            _mm_prefetch((const char *)(x + i + line + QT_PREFETCH_FLOATS), _MM_HINT_T0);
        const __m512 x0 = _mm512_loadu_ps(x + i), x1 = _mm512_loadu_ps(x + i + 16);
        const __m512 x2 = _mm512_loadu_ps(x + i + 32), x3 = _mm512_loadu_ps(x + i + 48);
        __m512 c0 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x0, r0), lo0), hi0);
        __m512 c1 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x1, r0), lo0), hi0);
        __m512 c2 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x2, r1), lo1), hi1);
        __m512 c3 = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x3, r1), lo1), hi1);
        const __m512 d01 = _mm512_range_ps(_mm512_reduce_ps(c0, 0), _mm512_reduce_ps(c1, 0), 11);
        const __m512 d23 = _mm512_range_ps(_mm512_reduce_ps(c2, 0), _mm512_reduce_ps(c3, 0), 11);
        if (_mm512_cmp_ps_mask(d01, _mm512_set1_ps(b.near[j]), _CMP_GE_OQ) |
            _mm512_cmp_ps_mask(d23, _mm512_set1_ps(b.near[j + 1]), _CMP_GE_OQ)) {
            const __m512 s0 = _mm512_set1_ps(b.s[j]), s1 = _mm512_set1_ps(b.s[j + 1]);
            c0 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x0, s0), lo0), hi0);
            c1 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x1, s0), lo0), hi0);
            c2 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x2, s1), lo1), hi1);
            c3 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x3, s1), lo1), hi1);
        }
        __m512i p = _mm512_packs_epi32(_mm512_cvtps_epi32(c0), _mm512_cvtps_epi32(c1));
        __m512i q = _mm512_packs_epi32(_mm512_cvtps_epi32(c2), _mm512_cvtps_epi32(c3));
        p = _mm512_and_si512(_mm512_add_epi16(p, _mm512_set1_epi16((short)z[at])), mask16);
        q = _mm512_and_si512(_mm512_add_epi16(q, _mm512_set1_epi16((short)z[at + 1])), mask16);
        _mm512_storeu_si512(y + i, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(p, q)));
    }
    return i;
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
        _mm_mask_storeu_epi8(y + i, k, _mm512_cvtepi32_epi8(_mm512_and_si512(codes, mask)));
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
    if (block >= n && n >= QT_STREAMED_RUN) {
        const ptrdiff_t done = qt_codes8_quarters__avx512vnni(x, s[0], 1.0f / s[0], z[0], type, n, y);
        x += done, y += done, n -= done;
    } else if (block < n && block >= QT_STREAMED_BLOCK) {
        const ptrdiff_t done = qt_codes8_rows__avx512vnni(x, s, z, block, type, n, y);
        x += done * block, y += done * block, n -= done * block, s += done, z += done;
    }
    if (block == 32 && n >= 64) {
        const ptrdiff_t done = qt_codes8_of32__avx512vnni(x, s, z, type, n, y);
        x += done, y += done, n -= done, s += done / 32, z += done / 32;
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

/* qt_float_code of elements.h, 16 at a time; signs and exceptional codes are masks. */
QT_TARGET QT_INLINE __m512i qt_float_codes__avx512vnni(__m512 x, __m512 s, __m512 z, const qt_small_float *f,
                                                       __m512i overflow) {
    const __m512i quiet = _mm512_set1_epi32(0x7F800000), least = _mm512_set1_epi32((int)(f->min_exponent << 23));
    const __m512i shift = _mm512_set1_epi32((int)(((23 - f->mantissa) << 23) | 0x400000));
    const __m512i nan = _mm512_set1_epi32((int)f->nan);
    const __m512i u = _mm512_castps_si512(_mm512_add_ps(_mm512_div_ps(x, s), z));
    const __m512i magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i capped = _mm512_min_epu32(magnitude, _mm512_set1_epi32((int)f->cap));
    const __m512i exponent = _mm512_max_epu32(_mm512_and_si512(capped, quiet), least);
    const __m512i magic = _mm512_add_epi32(exponent, shift);
    const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(capped), _mm512_castsi512_ps(magic));
    const __mmask16 is_nan = _mm512_cmpgt_epu32_mask(magnitude, quiet);
    __m512i code = _mm512_srl_epi32(_mm512_sub_epi32(exponent, least), _mm_cvtsi32_si128((int)(23 - f->mantissa)));
    code = _mm512_add_epi32(code, _mm512_sub_epi32(_mm512_castps_si512(sum), magic));
    code = _mm512_mask_mov_epi32(code, _mm512_cmpgt_epu32_mask(code, _mm512_set1_epi32((int)f->max_code)), overflow);
    code = _mm512_mask_mov_epi32(code, is_nan, nan);
    __mmask16 sign = _mm512_movepi32_mask(_mm512_mask_mov_epi32(u, is_nan, _mm512_castps_si512(x)));
    if (!f->nan_sign) sign &= _mm512_cmpneq_epi32_mask(code, nan);
    if (!f->zero_sign) sign &= _mm512_test_epi32_mask(code, code);
    return _mm512_mask_or_epi32(code, sign, code, _mm512_set1_epi32(1 << f->sign_shift));
}

QT_TARGET static void qt_floats__avx512vnni(const float *x, const float *s, const float *z, ptrdiff_t block,
                                            int precision, const qt_small_float *form, uint32_t overflow, ptrdiff_t n,
                                            uint8_t *y) {
    const qt_small_float f = *form;
    const __m512i beyond = _mm512_set1_epi32((int)overflow);
    if (precision != QT_FLOAT32) {
        qt_floats_loops__avx512vnni(x, s, z, block, precision, form, overflow, n, y);
        return;
    }
    if (block == 1) {
        for (ptrdiff_t i = 0; i < n; i += 16) {
            const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
            const __m512 v = _mm512_maskz_loadu_ps(k, x + i), scale = _mm512_maskz_loadu_ps(k, s + i);
            _mm_prefetch((const char *)(x + i + QT_PREFETCH_FLOATS), _MM_HINT_T0);
            const __m512i codes = qt_float_codes__avx512vnni(v, scale, _mm512_maskz_loadu_ps(k, z + i), &f, beyond);
            _mm_mask_storeu_epi8(y + i, k, _mm512_cvtepi32_epi8(codes));
        }
        return;
    }
    for (; n > 0; x += block, y += block, n -= block, ++s, ++z) {
        const ptrdiff_t m = n < block ? n : block;
        const __m512 s0 = _mm512_set1_ps(*s), z0 = _mm512_set1_ps(*z);
        for (ptrdiff_t i = 0; i < m; i += 16) {
            const __mmask16 k = m - i < 16 ? (__mmask16)((1u << (m - i)) - 1) : (__mmask16)0xFFFF;
            const __m512 v = _mm512_maskz_loadu_ps(k, x + i);
            _mm_prefetch((const char *)(x + i + QT_PREFETCH_FLOATS), _MM_HINT_T0);
            const __m512i codes = qt_float_codes__avx512vnni(v, s0, z0, &f, beyond);
            _mm_mask_storeu_epi8(y + i, k, _mm512_cvtepi32_epi8(codes)); /* vpmovdb to memory under a mask is slow */
        }
    }
}

#undef QT_FN
#undef QT_TARGET

static const qt_quantize qt_quantize_avx512vnni = {
    "quantize__avx512vnni", QT_ISA_AVX512VNNI, qt_load__avx512vnni, qt_codes8__avx512vnni, qt_codes16__avx512vnni,
    qt_floats__avx512vnni, qt_range__avx512vnni, qt_pack__avx512vnni,
};

#endif
