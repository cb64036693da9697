/* The end of a tile, 32 columns: corrections modulo 2^32, then int32 out, or equation (4) and 8 bits out.
 *
 * The same operations as qt_correct_row and qt_requantize_row, in the same order, each rounded once: one product, clamp,
 * rounding half to even (by the conversion, with its mode in the instruction), zero point. Only the upper bound is clamped
 * in float: what is too small for int32, and a NaN, converts to -2^31, and the saturation of the packing does the rest.
 * min(hi, v) keeps a NaN, because VMINPS returns its second operand then. Two rows are packed at a time: 64 codes fill a
 * register.
 *
 * The state of the columns is loaded once per tile and stays in registers, so that rows can be finished anywhere in the
 * loop over K of the next tile.
 */
#ifndef QT_REQUANTIZE_AVX512VNNI_H
#define QT_REQUANTIZE_AVX512VNNI_H

#include "gemm_pack_c4.h"
#include "requantize.h"

typedef struct {
    __m512i b_zero[2], col_term[2], y_zero, order;
    __m512 multiplier[2], hi;
    __mmask32 columns;
    int is_signed;
} qt_end_state__avx512vnni;

QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_end_load__avx512vnni(
    const qt_tile_end *e, qt_end_state__avx512vnni *s) {
    for (int h = 0; h < 2; ++h) {
        s->b_zero[h] = e->b_zero ? _mm512_loadu_si512(e->b_zero + 16 * h) : _mm512_setzero_si512();
        s->col_term[h] = _mm512_loadu_si512(e->col_term + 16 * h);
        s->multiplier[h] = e->multiplier ? _mm512_loadu_ps(e->multiplier + 16 * h) : _mm512_setzero_ps();
    }
    s->hi = _mm512_set1_ps(e->hi), s->y_zero = _mm512_set1_epi16((short)e->y_zero);
    s->order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    s->columns = e->cols >= 32 ? 0xFFFFFFFFu : (1u << e->cols) - 1;
    s->is_signed = e->lo + (float)e->y_zero < 0; /* lo is the least code less the zero point */
}

/* Rows i and, if `two`, i + 1, of 8-bit results, from corrected sums. */
QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_end_codes__avx512vnni(
    const qt_tile_end *e, const qt_end_state__avx512vnni *s, ptrdiff_t i, int two, __m512i v[4]) {
    char *out = e->out + i * e->ld;
    for (int h = 0; h < (two ? 4 : 2); ++h) {
        const __m512 f = _mm512_mul_ps(
            _mm512_cvt_roundepi32_ps(v[h], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), s->multiplier[h & 1]);
        v[h] = _mm512_cvt_roundps_epi32(_mm512_min_ps(s->hi, f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    const __m512i r0 = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), s->y_zero);
    const __m512i r1 = two ? _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), s->y_zero) : r0;
    const __m512i codes = s->is_signed ? _mm512_packs_epi16(r0, r1) : _mm512_packus_epi16(r0, r1);
    const __m512i rows = _mm512_permutexvar_epi32(s->order, codes); /* out of the 128-bit lanes of the packing */
    _mm256_mask_storeu_epi8(out, s->columns, _mm512_castsi512_si256(rows));
    if (two) _mm256_mask_storeu_epi8(out + e->ld, s->columns, _mm512_extracti64x4_epi64(rows, 1));
}

/* Rows i and i + 1, in registers. */
QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_end_pair__avx512vnni(
    const qt_tile_end *e, const qt_end_state__avx512vnni *s, ptrdiff_t i, __m512i x0, __m512i y0, __m512i x1, __m512i y1) {
    __m512i v[4] = {x0, y0, x1, y1};
    qt_end_codes__avx512vnni(e, s, i, 1, v);
}

/* Rows i and, if `two`, i + 1. */
QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_end_rows__avx512vnni(
    const qt_tile_end *e, const qt_end_state__avx512vnni *s, ptrdiff_t i, int two) {
    __m512i v[4];
    char *out = e->out + i * e->ld;
    for (int h = 0; h < (two ? 4 : 2); ++h)
        v[h] = _mm512_add_epi32(_mm512_loadu_si512(e->acc + i * 32 + 16 * h), s->col_term[h & 1]);
    if (e->b_zero)
        for (int h = 0; h < (two ? 4 : 2); ++h) {
            const __m512i row = _mm512_set1_epi32((int32_t)e->row_term[i + h / 2]);
            v[h] = _mm512_add_epi32(v[h], _mm512_mullo_epi32(row, s->b_zero[h & 1]));
        }
    if (e->multiplier) {
        qt_end_codes__avx512vnni(e, s, i, two, v);
    } else
        for (int h = 0; h < (two ? 4 : 2); ++h)
            _mm512_mask_storeu_epi32(out + h / 2 * e->ld + (h & 1) * 64, (__mmask16)(s->columns >> 16 * (h & 1)), v[h]);
}

QT_TARGET_AVX512VNNI static void qt_finish__avx512vnni(const qt_tile_end *e) {
    qt_end_state__avx512vnni s;
    qt_end_load__avx512vnni(e, &s);
    ptrdiff_t i = 0;
    for (; i + 2 <= e->rows; i += 2) qt_end_rows__avx512vnni(e, &s, i, 1);
    if (i < e->rows) qt_end_rows__avx512vnni(e, &s, i, 0);
}

#endif
