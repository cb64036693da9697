/* One row of A times row-major B, straight from B: nothing is packed, memory is the limit.
 *
 * Four rows of 64 columns are interleaved in registers, bytes into words, words into dwords, as VPDPBUSD wants them: 8
 * shuffles for 256 bytes, which is far less time than they take from the third-level cache. The shuffles keep to their
 * 128-bit lanes, so that sum s, lane l, dword d belongs to column 16l + 4s + d; the last call transposes the lanes.
 *
 * 16 rows at once, along all columns: 16 runs that the hardware sees coming (a software prefetch made it slower: 59 GOPS
 * without, 51-57 with), and the sums, which stay in L1, are loaded and stored once per 1 KB of B. Wide runs count: of
 * 4096, 2048 and 1024 columns 59, 54 and 47 GOPS; plain reading would be 62.
 *
 * Exact: VPDPBUSD adds four products modulo 2^32. The sums of the columns are VPDPBUSD with ones. Rows that do not exist
 * are 0 after the flip.
 */
#ifndef QT_GEMM_STREAM_AVX512VNNI_H
#define QT_GEMM_STREAM_AVX512VNNI_H

#include "gemm_pack_c4.h"

/* Lane l of v[s] to lane s of v[l]. */
QT_TARGET_AVX512VNNI static inline void qt_transpose_lanes__avx512vnni(uint32_t *sums) {
    const __m512i a = _mm512_loadu_si512(sums), b = _mm512_loadu_si512(sums + 16);
    const __m512i c = _mm512_loadu_si512(sums + 32), d = _mm512_loadu_si512(sums + 48);
    const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), cd = _mm512_shuffle_i32x4(c, d, 0x44);
    const __m512i AB = _mm512_shuffle_i32x4(a, b, 0xEE), CD = _mm512_shuffle_i32x4(c, d, 0xEE);
    _mm512_storeu_si512(sums, _mm512_shuffle_i32x4(ab, cd, 0x88));
    _mm512_storeu_si512(sums + 16, _mm512_shuffle_i32x4(ab, cd, 0xDD));
    _mm512_storeu_si512(sums + 32, _mm512_shuffle_i32x4(AB, CD, 0x88));
    _mm512_storeu_si512(sums + 48, _mm512_shuffle_i32x4(AB, CD, 0xDD));
}

/* 64 columns of `quads` <= 4 times four rows; of the last four `rest` exist. All of them and all columns if `whole`. */
QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_stream_64__avx512vnni(
    const __m512i v[4], const uint8_t *b, ptrdiff_t ld, int quads, ptrdiff_t rest, int whole, __mmask64 columns,
    __m512i flip, uint32_t *acc, uint32_t *colsum) {
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i c0 = _mm512_loadu_si512(acc), c1 = _mm512_loadu_si512(acc + 16);
    __m512i c2 = _mm512_loadu_si512(acc + 32), c3 = _mm512_loadu_si512(acc + 48);
    __m512i s0 = _mm512_loadu_si512(colsum), s1 = _mm512_loadu_si512(colsum + 16);
    __m512i s2 = _mm512_loadu_si512(colsum + 32), s3 = _mm512_loadu_si512(colsum + 48);
#pragma GCC unroll 4
    for (int q = 0; q < quads; ++q, b += 4 * ld) {
        __m512i r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            if (whole) r[i] = _mm512_xor_si512(flip, _mm512_loadu_si512(b + i * ld));
            else if (q < quads - 1 || i < rest) r[i] = _mm512_xor_si512(flip, _mm512_maskz_loadu_epi8(columns, b + i * ld));
            else r[i] = _mm512_setzero_si512();
        }
        const __m512i l01 = _mm512_unpacklo_epi8(r[0], r[1]), h01 = _mm512_unpackhi_epi8(r[0], r[1]);
        const __m512i l23 = _mm512_unpacklo_epi8(r[2], r[3]), h23 = _mm512_unpackhi_epi8(r[2], r[3]);
        const __m512i b0 = _mm512_unpacklo_epi16(l01, l23), b1 = _mm512_unpackhi_epi16(l01, l23);
        const __m512i b2 = _mm512_unpacklo_epi16(h01, h23), b3 = _mm512_unpackhi_epi16(h01, h23);
        c0 = _mm512_dpbusd_epi32(c0, v[q], b0), s0 = _mm512_dpbusd_epi32(s0, ones, b0);
        c1 = _mm512_dpbusd_epi32(c1, v[q], b1), s1 = _mm512_dpbusd_epi32(s1, ones, b1);
        c2 = _mm512_dpbusd_epi32(c2, v[q], b2), s2 = _mm512_dpbusd_epi32(s2, ones, b2);
        c3 = _mm512_dpbusd_epi32(c3, v[q], b3), s3 = _mm512_dpbusd_epi32(s3, ones, b3);
    }
    _mm512_storeu_si512(acc, c0), _mm512_storeu_si512(acc + 16, c1);
    _mm512_storeu_si512(acc + 32, c2), _mm512_storeu_si512(acc + 48, c3);
    _mm512_storeu_si512(colsum, s0), _mm512_storeu_si512(colsum + 16, s1);
    _mm512_storeu_si512(colsum + 32, s2), _mm512_storeu_si512(colsum + 48, s3);
}

QT_TARGET_AVX512VNNI static void qt_stream__avx512vnni(const uint8_t *a, const uint8_t *b, ptrdiff_t k_stride,
                                                       ptrdiff_t rows, ptrdiff_t cols, uint8_t flip, int last,
                                                       uint32_t *acc, uint32_t *colsum) {
    const __m512i f = _mm512_set1_epi8((char)flip);
    const int quads = (int)((rows + 3) / 4);
    const ptrdiff_t rest = rows - 4 * (quads - 1);
    __m512i v[4];
    for (int q = 0; q < 4; ++q) {
        int32_t quad = 0;
        if (q < quads) memcpy(&quad, a + 4 * q, 4);
        v[q] = _mm512_set1_epi32(quad);
    }
    ptrdiff_t j = 0;
    if (rows == 16)
        for (; j + 64 <= cols; j += 64)
            qt_stream_64__avx512vnni(v, b + j, k_stride, 4, 4, 1, 0, f, acc + j, colsum + j);
    for (; j < cols; j += 64)
        qt_stream_64__avx512vnni(v, b + j, k_stride, quads, rest, 0, qt_first_bytes__avx512vnni(cols - j), f, acc + j,
                                 colsum + j);
    if (last)
        for (j = 0; j < cols; j += 64) {
            qt_transpose_lanes__avx512vnni(acc + j);
            qt_transpose_lanes__avx512vnni(colsum + j);
        }
}

#endif
