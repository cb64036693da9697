/* Ends of a convolution on AVX-512: runs32c64__avx512vnni.
 *
 * pack_runs writes the layout of gemm_pack_c4.h, 32 columns by 64 k: four runs of 64 bytes are interleaved in registers
 * as there, but each run has an address of its own. Sums are VPDPBUSD with ones.
 *
 * finish: 16 positions at a time under a mask, so that short lines cost one step. CVTPS2DQ rounds half to even, as the
 * magic constant of requantize.h does, and MAXPS in this order turns NaN into the lower bound.
 * Whole tiles of 32 columns save the lower clamp: MINPS in this order keeps NaN, CVTPS2DQ turns it and everything too small
 * into INT_MIN, and the saturating packs then give the smallest code, whatever the zero point (|zy| <= 255, in 16 bits).
 */
#ifndef QT_CONV_ENDS_AVX512VNNI_H
#define QT_CONV_ENDS_AVX512VNNI_H

#include "gemm_pack_c4.h"

/* k <= 64 runs, cols <= 64 of each, into the tiles low, low + 1 KB (columns 0-31) and high, high + 1 KB (32-63). */
QT_TARGET_AVX512VNNI static inline void qt_tiles_of_runs__avx512vnni(const uint8_t *base, const ptrdiff_t *at, ptrdiff_t k,
                                                                     ptrdiff_t cols, uint8_t flip, uint8_t *low,
                                                                     uint8_t *high, uint32_t *sums) {
    const __mmask64 m = qt_first_bytes__avx512vnni(cols);
    const __m512i f = _mm512_maskz_mov_epi8(m, _mm512_set1_epi8((char)flip)), ones = _mm512_set1_epi8(1);
    const __m512i zero = _mm512_setzero_si512();
    __m512i s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    for (ptrdiff_t q = 0; q < 16; ++q) {
        const ptrdiff_t left = k - 4 * q;
        __m512i r0 = zero, r1 = zero, r2 = zero, r3 = zero;
        if (left > 0) r0 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, base + at[4 * q]), f);
        if (left > 1) r1 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, base + at[4 * q + 1]), f);
        if (left > 2) r2 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, base + at[4 * q + 2]), f);
        if (left > 3) r3 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, base + at[4 * q + 3]), f);
        const __m512i l01 = _mm512_unpacklo_epi8(r0, r1), h01 = _mm512_unpackhi_epi8(r0, r1);
        const __m512i l23 = _mm512_unpacklo_epi8(r2, r3), h23 = _mm512_unpackhi_epi8(r2, r3);
        const __m512i e = _mm512_unpacklo_epi16(l01, l23), g = _mm512_unpackhi_epi16(l01, l23);
        const __m512i h = _mm512_unpacklo_epi16(h01, h23), i = _mm512_unpackhi_epi16(h01, h23);
        const __m512i eg = _mm512_shuffle_i32x4(e, g, 0x44), hi = _mm512_shuffle_i32x4(h, i, 0x44);
        const __m512i EG = _mm512_shuffle_i32x4(e, g, 0xEE), HI = _mm512_shuffle_i32x4(h, i, 0xEE);
        const __m512i v0 = _mm512_shuffle_i32x4(eg, hi, 0x88), v1 = _mm512_shuffle_i32x4(eg, hi, 0xDD);
        const __m512i v2 = _mm512_shuffle_i32x4(EG, HI, 0x88), v3 = _mm512_shuffle_i32x4(EG, HI, 0xDD);
        _mm512_storeu_si512(low + q * 64, v0), _mm512_storeu_si512(low + 1024 + q * 64, v1);
        _mm512_storeu_si512(high + q * 64, v2), _mm512_storeu_si512(high + 1024 + q * 64, v3);
        s0 = _mm512_dpbusd_epi32(s0, ones, v0), s1 = _mm512_dpbusd_epi32(s1, ones, v1);
        s2 = _mm512_dpbusd_epi32(s2, ones, v2), s3 = _mm512_dpbusd_epi32(s3, ones, v3);
    }
    qt_add_sums__avx512vnni(sums, cols, s0);
    if (cols > 16) qt_add_sums__avx512vnni(sums + 16, cols - 16, s1);
    if (cols > 32) qt_add_sums__avx512vnni(sums + 32, cols - 32, s2);
    if (cols > 48) qt_add_sums__avx512vnni(sums + 48, cols - 48, s3);
}

QT_TARGET_AVX512VNNI static void qt_pack_runs__avx512vnni(const uint8_t *base, const ptrdiff_t *at, ptrdiff_t cols,
                                                          ptrdiff_t kc, uint8_t flip, void *packed, uint32_t *colsum) {
    const ptrdiff_t padded = (kc + 63) & ~(ptrdiff_t)63;
    uint8_t spare[2048];
    for (ptrdiff_t k = 0; k < kc; k += 64)
        for (ptrdiff_t j = 0; j < cols; j += 64) {
            uint8_t *low = (uint8_t *)packed + j * padded + k * 32;
            qt_tiles_of_runs__avx512vnni(base + j, at + k, qt_least(64, kc - k), qt_least(64, cols - j), flip, low,
                                         cols - j > 32 ? low + 32 * padded : spare, colsum + j);
        }
}

/* Sums of row r as quotients of the scale of y, neither clamped nor rounded. */
QT_TARGET_AVX512VNNI static inline __m512 qt_scaled__avx512vnni(const qt_channels *c, int literal, ptrdiff_t r,
                                                                __m512i v) {
    const __m512 f = _mm512_cvtepi32_ps(v);
    if (!literal) return _mm512_mul_ps(f, _mm512_set1_ps(c->multiplier[r]));
    return _mm512_div_ps(_mm512_mul_ps(_mm512_mul_ps(f, _mm512_set1_ps(c->x_scale)), _mm512_set1_ps(c->w_scale[r])),
                         _mm512_set1_ps(c->q->y_scale));
}

/* 32 columns of all rows, 8-bit out. */
QT_TARGET_AVX512VNNI static inline void qt_finish_32__avx512vnni(const qt_channels *c, int literal, ptrdiff_t rows,
                                                                 const uint32_t *acc, ptrdiff_t ld,
                                                                 const uint32_t *less, uint8_t *y, ptrdiff_t out_ld) {
    const __m512i less0 = _mm512_loadu_si512(less), less1 = _mm512_loadu_si512(less + 16);
    const __m512 hi = _mm512_set1_ps(c->q->hi);
    const __m512i zy = _mm512_set1_epi16((short)c->q->y_zero);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    const int is_signed = c->q->lo + (float)c->q->y_zero < 0;
    for (ptrdiff_t r = 0; r < rows; ++r, acc += ld, y += out_ld) {
        const __m512i add = _mm512_set1_epi32((int32_t)c->add[r]);
        const __m512i v0 = _mm512_add_epi32(_mm512_sub_epi32(_mm512_loadu_si512(acc), less0), add);
        const __m512i v1 = _mm512_add_epi32(_mm512_sub_epi32(_mm512_loadu_si512(acc + 16), less1), add);
        const __m512 f0 = _mm512_min_ps(hi, qt_scaled__avx512vnni(c, literal, r, v0));
        const __m512 f1 = _mm512_min_ps(hi, qt_scaled__avx512vnni(c, literal, r, v1));
        __m512i p = _mm512_packs_epi32(_mm512_cvtps_epi32(f0), _mm512_cvtps_epi32(f1));
        p = _mm512_adds_epi16(p, zy);
        p = is_signed ? _mm512_packs_epi16(p, p) : _mm512_packus_epi16(p, p);
        _mm256_storeu_si256((__m256i *)y, _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, p)));
    }
}

/* n <= 16 columns of all rows. */
QT_TARGET_AVX512VNNI static inline void qt_finish_16__avx512vnni(const qt_channels *c, int literal, ptrdiff_t rows,
                                                                 const uint32_t *acc, ptrdiff_t ld,
                                                                 const uint32_t *less, ptrdiff_t n, char *y,
                                                                 ptrdiff_t out_ld) {
    const __mmask16 m = qt_first_lanes__avx512vnni(n);
    const __m512i l = _mm512_maskz_loadu_epi32(m, less);
    const __m512 lo = _mm512_set1_ps(c->q ? c->q->lo : 0), hi = _mm512_set1_ps(c->q ? c->q->hi : 0);
    const __m512i zy = _mm512_set1_epi32(c->q ? c->q->y_zero : 0);
    for (ptrdiff_t r = 0; r < rows; ++r, acc += ld) {
        __m512i v = _mm512_sub_epi32(_mm512_maskz_loadu_epi32(m, acc), l);
        v = _mm512_add_epi32(v, _mm512_set1_epi32((int32_t)c->add[r]));
        if (!c->q) {
            _mm512_mask_storeu_epi32(y + r * out_ld * 4, m, v);
            continue;
        }
        const __m512 f = _mm512_min_ps(_mm512_max_ps(qt_scaled__avx512vnni(c, literal, r, v), lo), hi);
        v = _mm512_add_epi32(_mm512_cvtps_epi32(f), zy);
        _mm_mask_storeu_epi8(y + r * out_ld, m, _mm512_cvtepi32_epi8(v));
    }
}

QT_TARGET_AVX512VNNI static void qt_finish_tile__avx512vnni(const qt_channels *c, ptrdiff_t rows, const uint32_t *acc,
                                                            ptrdiff_t ld, const uint32_t *less,
                                                            const qt_segment *segments, ptrdiff_t count, void *out,
                                                            ptrdiff_t out_ld) {
    const int literal = c->q && c->q->form != QT_FORM_MULTIPLIER;
    const ptrdiff_t width = c->q ? 1 : 4;
    for (ptrdiff_t s = 0; s < count; ++s) {
        const ptrdiff_t n = segments[s].length, from = segments[s].from;
        char *y = (char *)out + segments[s].to * width;
        ptrdiff_t i = 0;
        for (; c->q && i + 32 <= n; i += 32)
            qt_finish_32__avx512vnni(c, literal, rows, acc + from + i, ld, less + from + i, (uint8_t *)y + i, out_ld);
        for (; i < n; i += 16)
            qt_finish_16__avx512vnni(c, literal, rows, acc + from + i, ld, less + from + i, n - i, y + i * width, out_ld);
    }
}

static const qt_conv_ends qt_conv_ends_runs32c64__avx512vnni = {
    .name = "runs32c64__avx512vnni",
    .isa = QT_ISA_AVX512VNNI,
    .packs_like = qt_pack_b_32c64__avx512vnni,
    .pack_runs = qt_pack_runs__avx512vnni,
    .finish = qt_finish_tile__avx512vnni,
};

#endif
