/* Packers of the AVX-512 and AMX rows: bytes, four consecutive k side by side.
 *
 *     B  panels of 32 columns; a panel is cut along K into steps of 64 k; a step is two tiles of 1 KB, columns 0-15 and
 *        16-31; a tile is 16 lines (k-quads) of 16 columns of 4 bytes (k, k+1, k+2, k+3). K is padded by 0 to 64.
 *     A  panels of mr rows; a step of 64 k is mr lines of 64 bytes.
 *
 * A line of B and a dword of A are what VPDPBUSD takes, a tile of B and 16 lines of A what TDPBUSD takes: one layout
 * serves both. A panel may be cut along K at any multiple of 64, since the steps follow each other.
 *
 * Row-major B: four rows of 64 columns are interleaved in registers, bytes into words, words into dwords, then the four
 * 128-bit lanes are transposed, 16 shuffles for 256 bytes. K is the outer loop: 64 rows times all columns, because each
 * row of a wide B lies in a page of its own and 64 pages fit the TLB, thousands do not.
 * Column-major B: 16 columns of 64 k are a 16x16 matrix of dwords, which is transposed. A of K-major rows (a convolution)
 * goes through both. Any other stride is gathered into a block of 64x64 first.
 *
 * Sums are VPDPBUSD with ones, modulo 2^32. Padding is 0 after the flip, so it adds nothing to products or sums.
 */
#ifndef QT_GEMM_PACK_C4_H
#define QT_GEMM_PACK_C4_H

#include <immintrin.h>
#include <string.h>

#define QT_TARGET_AVX512VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

static inline ptrdiff_t qt_least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

QT_TARGET_AVX512VNNI static inline __mmask64 qt_first_bytes__avx512vnni(ptrdiff_t n) {
    return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1;
}

QT_TARGET_AVX512VNNI static inline __mmask16 qt_first_lanes__avx512vnni(ptrdiff_t n) {
    return n >= 16 ? (__mmask16)0xFFFF : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* sums[0..n) += lanes of v */
QT_TARGET_AVX512VNNI static inline void qt_add_sums__avx512vnni(uint32_t *sums, ptrdiff_t n, __m512i v) {
    const __mmask16 m = qt_first_lanes__avx512vnni(n);
    _mm512_mask_storeu_epi32(sums, m, _mm512_add_epi32(_mm512_maskz_loadu_epi32(m, sums), v));
}

/* Four rows of 64 bytes into four lines of 16 dwords; *s += the sums of the dwords, unsigned bytes if `left`. */
#define QT_INTERLEAVE(R0, R1, R2, R3, Q)                                                                               \
    do {                                                                                                               \
        const __m512i l01 = _mm512_unpacklo_epi8(R0, R1), h01 = _mm512_unpackhi_epi8(R0, R1);                          \
        const __m512i l23 = _mm512_unpacklo_epi8(R2, R3), h23 = _mm512_unpackhi_epi8(R2, R3);                          \
        const __m512i e = _mm512_unpacklo_epi16(l01, l23), g = _mm512_unpackhi_epi16(l01, l23);                        \
        const __m512i h = _mm512_unpacklo_epi16(h01, h23), i = _mm512_unpackhi_epi16(h01, h23);                        \
        const __m512i eg = _mm512_shuffle_i32x4(e, g, 0x44), hi = _mm512_shuffle_i32x4(h, i, 0x44);                    \
        const __m512i EG = _mm512_shuffle_i32x4(e, g, 0xEE), HI = _mm512_shuffle_i32x4(h, i, 0xEE);                    \
        const __m512i v0 = _mm512_shuffle_i32x4(eg, hi, 0x88), v1 = _mm512_shuffle_i32x4(eg, hi, 0xDD);                \
        const __m512i v2 = _mm512_shuffle_i32x4(EG, HI, 0x88), v3 = _mm512_shuffle_i32x4(EG, HI, 0xDD);                \
        _mm512_storeu_si512(low + (Q) * 64, v0), _mm512_storeu_si512(low + 1024 + (Q) * 64, v1);                       \
        _mm512_storeu_si512(high + (Q) * 64, v2), _mm512_storeu_si512(high + 1024 + (Q) * 64, v3);                     \
        s0 = left ? _mm512_dpbusd_epi32(s0, v0, ones) : _mm512_dpbusd_epi32(s0, ones, v0);                             \
        s1 = left ? _mm512_dpbusd_epi32(s1, v1, ones) : _mm512_dpbusd_epi32(s1, ones, v1);                             \
        s2 = left ? _mm512_dpbusd_epi32(s2, v2, ones) : _mm512_dpbusd_epi32(s2, ones, v2);                             \
        s3 = left ? _mm512_dpbusd_epi32(s3, v3, ones) : _mm512_dpbusd_epi32(s3, ones, v3);                             \
    } while (0)

/* k <= 64 rows of cols <= 64 bytes into the tiles low, low + 1 KB (columns 0-31) and high, high + 1 KB (32-63). */
QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_tiles_of_rows__avx512vnni(
    const uint8_t *src, ptrdiff_t ld, ptrdiff_t k, ptrdiff_t cols, uint8_t flip, int left, uint8_t *low, uint8_t *high,
    uint32_t *sums) {
    const __mmask64 m = qt_first_bytes__avx512vnni(cols);
    const __m512i f = _mm512_maskz_mov_epi8(m, _mm512_set1_epi8((char)flip)), ones = _mm512_set1_epi8(1);
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
    ptrdiff_t q = 0;
    for (; 4 * q + 4 <= k; ++q, src += 4 * ld) {
        /* 64 streams are too many for the hardware to foresee; beyond the last column this fetches in vain, harmlessly */
        for (int r = 0; r < 4; ++r) _mm_prefetch((const char *)src + r * ld + 256, _MM_HINT_T0);
        const __m512i r0 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src), f);
        const __m512i r1 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src + ld), f);
        const __m512i r2 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src + 2 * ld), f);
        const __m512i r3 = _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src + 3 * ld), f);
        QT_INTERLEAVE(r0, r1, r2, r3, q);
    }
    for (; q < 16; ++q, src += 4 * ld) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i r0 = 4 * q < k ? _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src), f) : zero;
        const __m512i r1 = 4 * q + 1 < k ? _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src + ld), f) : zero;
        const __m512i r2 = 4 * q + 2 < k ? _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, src + 2 * ld), f) : zero;
        QT_INTERLEAVE(r0, r1, r2, zero, q);
    }
    qt_add_sums__avx512vnni(sums, cols, s0);
    if (cols > 16) qt_add_sums__avx512vnni(sums + 16, cols - 16, s1);
    if (cols > 32) qt_add_sums__avx512vnni(sums + 32, cols - 32, s2);
    if (cols > 48) qt_add_sums__avx512vnni(sums + 48, cols - 48, s3);
}
#undef QT_INTERLEAVE

/* dst[j][i] = src[i][j], dwords; lines of src are at any addresses, `to` holds those of dst. */
QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_transpose_16x16__avx512vnni(
    __m512i r[16], uint8_t *to, ptrdiff_t step) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c), t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d), t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; ++i) { /* lane l of t[4g + i] holds column 4l + i of rows 4g .. 4g+3 */
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x44), b = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x44);
        const __m512i c = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xEE), d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xEE);
        _mm512_storeu_si512(to + i * step, _mm512_shuffle_i32x4(a, b, 0x88));
        _mm512_storeu_si512(to + (4 + i) * step, _mm512_shuffle_i32x4(a, b, 0xDD));
        _mm512_storeu_si512(to + (8 + i) * step, _mm512_shuffle_i32x4(c, d, 0x88));
        _mm512_storeu_si512(to + (12 + i) * step, _mm512_shuffle_i32x4(c, d, 0xDD));
    }
}

/* A block of 64 x 64 out of a matrix of any strides. */
static void qt_gather_64x64(const uint8_t *src, ptrdiff_t row_stride, ptrdiff_t col_stride, ptrdiff_t rows,
                            ptrdiff_t cols, uint8_t *block) {
    for (ptrdiff_t i = 0; i < rows; ++i)
        for (ptrdiff_t j = 0; j < cols; ++j) block[i * 64 + j] = src[i * row_stride + j * col_stride];
}

QT_TARGET_AVX512VNNI static void qt_pack_b_32c64__avx512vnni(const uint8_t *b, ptrdiff_t k_stride, ptrdiff_t col_stride,
                                                             ptrdiff_t cols, ptrdiff_t kc, uint8_t flip, void *packed,
                                                             uint32_t *colsum) {
    const ptrdiff_t padded = (kc + 63) & ~(ptrdiff_t)63;
    const __m512i f = _mm512_set1_epi8((char)flip), ones = _mm512_set1_epi8(1);
    uint8_t block[4096], spare[2048];
    if (k_stride == 1 && col_stride != 1) {
        for (ptrdiff_t j = 0; j < ((cols + 31) & ~(ptrdiff_t)31); j += 16) {
            uint8_t *dst = (uint8_t *)packed + (j & ~(ptrdiff_t)31) * padded + (j & 16) * 64;
            __m512i sum = _mm512_setzero_si512(), r[16];
            for (ptrdiff_t k = 0; k < kc; k += 64, dst += 2048) {
                const __mmask64 m = qt_first_bytes__avx512vnni(kc - k);
                for (int i = 0; i < 16; ++i)
                    r[i] = j + i >= cols ? _mm512_setzero_si512()
                                         : _mm512_maskz_mov_epi8(m, _mm512_xor_si512(f, _mm512_maskz_loadu_epi8(
                                                                        m, b + (j + i) * col_stride + k)));
                qt_transpose_16x16__avx512vnni(r, dst, 64);
                for (int q = 0; q < 16; ++q) sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(dst + q * 64));
            }
            if (j < cols) qt_add_sums__avx512vnni(colsum + j, cols - j, sum);
        }
        return;
    }
    for (ptrdiff_t k = 0; k < kc; k += 64)
        for (ptrdiff_t j = 0; j < cols; j += 64) {
            const ptrdiff_t height = qt_least(64, kc - k), width = qt_least(64, cols - j);
            const uint8_t *src = b + k * k_stride + j * col_stride;
            uint8_t *low = (uint8_t *)packed + j * padded + k * 32, *high = width > 32 ? low + 32 * padded : spare;
            ptrdiff_t ld = k_stride;
            if (col_stride != 1) {
                qt_gather_64x64(src, k_stride, col_stride, height, width, block);
                src = block, ld = 64;
            }
            qt_tiles_of_rows__avx512vnni(src, ld, height, width, flip, 0, low, high, colsum + j);
        }
}

QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_pack_a_c64__avx512vnni(
    const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride, ptrdiff_t rows, ptrdiff_t kc, uint8_t flip,
    ptrdiff_t mr, uint8_t *packed, uint32_t *rowsum) {
    const ptrdiff_t padded = (kc + 63) & ~(ptrdiff_t)63;
    ptrdiff_t all = (rows + mr - 1) / mr * mr;
    if (all - rows >= mr - 4) all = (rows + 3) & ~(ptrdiff_t)3; /* of so few rows nobody reads what follows */
    const __m512i f = _mm512_set1_epi8((char)flip), ones = _mm512_set1_epi8(1);
    uint8_t block[4096], tiles[4096], lines[1024];
    if (k_stride == 1)
        for (ptrdiff_t i = 0; i < rows; ++i) {
            const uint8_t *src = a + i * row_stride;
            uint8_t *dst = packed + i / mr * mr * padded + i % mr * 64;
            __m512i sum = _mm512_setzero_si512();
            ptrdiff_t k = 0;
            for (; k + 64 <= kc; k += 64, dst += mr * 64) {
                const __m512i v = _mm512_xor_si512(f, _mm512_loadu_si512(src + k));
                _mm512_storeu_si512(dst, v);
                sum = _mm512_dpbusd_epi32(sum, v, ones);
            }
            if (k < kc) {
                const __mmask64 m = qt_first_bytes__avx512vnni(kc - k);
                const __m512i v =
                    _mm512_maskz_mov_epi8(m, _mm512_xor_si512(f, _mm512_maskz_loadu_epi8(m, src + k)));
                _mm512_storeu_si512(dst, v);
                sum = _mm512_dpbusd_epi32(sum, v, ones);
            }
            rowsum[i] += (uint32_t)_mm512_reduce_add_epi32(sum);
        }
    else
        for (ptrdiff_t k = 0; k < kc; k += 64)
            for (ptrdiff_t i = 0; i < rows; i += 64) {
                const ptrdiff_t height = qt_least(64, kc - k), width = qt_least(64, rows - i);
                const uint8_t *src = a + k * k_stride + i * row_stride;
                ptrdiff_t ld = k_stride;
                if (row_stride != 1) {
                    qt_gather_64x64(src, k_stride, row_stride, height, width, block);
                    src = block, ld = 64;
                }
                qt_tiles_of_rows__avx512vnni(src, ld, height, width, flip, 1, tiles, tiles + 2048, rowsum + i);
                for (ptrdiff_t t = 0; t * 16 < width; ++t) {
                    __m512i r[16];
                    for (int q = 0; q < 16; ++q) r[q] = _mm512_loadu_si512(tiles + t * 1024 + q * 64);
                    qt_transpose_16x16__avx512vnni(r, lines, 64);
                    for (ptrdiff_t n = i + t * 16, end = i + qt_least(t * 16 + 16, width); n < end; ++n)
                        _mm512_storeu_si512(packed + n / mr * mr * padded + k * mr + n % mr * 64,
                                            _mm512_loadu_si512(lines + (n - i - t * 16) * 64));
                }
            }
    for (ptrdiff_t i = rows; i < all; ++i)
        for (ptrdiff_t k = 0; k < kc; k += 64)
            _mm512_storeu_si512(packed + i / mr * mr * padded + k * mr + i % mr * 64, _mm512_setzero_si512());
}

QT_TARGET_AVX512VNNI static void qt_pack_a_12c64__avx512vnni(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride,
                                                             ptrdiff_t rows, ptrdiff_t kc, uint8_t flip, void *packed,
                                                             uint32_t *rowsum) {
    qt_pack_a_c64__avx512vnni(a, row_stride, k_stride, rows, kc, flip, 12, (uint8_t *)packed, rowsum);
}

QT_TARGET_AVX512VNNI static void qt_pack_a_32c64__avx512vnni(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride,
                                                             ptrdiff_t rows, ptrdiff_t kc, uint8_t flip, void *packed,
                                                             uint32_t *rowsum) {
    qt_pack_a_c64__avx512vnni(a, row_stride, k_stride, rows, kc, flip, 32, (uint8_t *)packed, rowsum);
}

#endif
