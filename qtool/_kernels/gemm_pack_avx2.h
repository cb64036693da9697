/* Packers of the AVX2 and AVX-VNNI micro-kernels: bytes to groups of four consecutive k ("quads"), sums on the way.
 *
 * A, panels of 6 rows:      quad 0: row 0 k0..k3 | row 1 k0..k3 | ... | row 5 k0..k3 | quad 1: ...      (one or two bytes
 * B, panels of 16 columns:  quad 0: col 0 k0..k3 | col 1 k0..k3 | ... | col 15      | quad 1: ...        per element of A)
 *
 * Not the 64 k x 32 columns of the AMX layout: K would be padded to 64 and N to 32, and the first convolution of a
 * network (K = 27) would do twice its work. Here K is padded to 4 and N to 16.
 *
 * Each packer has one loop for either contiguous axis and one for neither. Lines (k constant) become quads by two rounds
 * of byte and word interleaving, and the sum of a quad is PMADDUBSW with ones, where nothing saturates: |sum of two| <= 510.
 */
#ifndef QT_GEMM_PACK_AVX2_H
#define QT_GEMM_PACK_AVX2_H

#include <immintrin.h>
#include <string.h>

#define QT_TARGET_AVX2 __attribute__((target("avx2")))
#define QT_INLINE_AVX2 static inline __attribute__((target("avx2"), always_inline))

#define QT_ROWS_OF_1(X) X(0)
#define QT_ROWS_OF_2(X) X(0) X(1)
#define QT_ROWS_OF_6(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* Both accumulators are in registers here. Without it gcc 12 writes each of them to the stack at each step of K, for the
 * instructions after the loop; with named accumulators instead of an array and this, it spills none. */
#define QT_KEEP(x, y) __asm__("" : "+x"(x), "+x"(y));

/* n <= 16 bytes and zeros; never reads beyond them. */
QT_INLINE_AVX2 __m128i qt_load_bytes__avx2(const uint8_t *s, ptrdiff_t n) {
    if (n >= 16) return _mm_loadu_si128((const __m128i *)s);
    uint8_t bytes[16] = {0};
    for (ptrdiff_t i = 0; i < n; ++i) bytes[i] = s[i];
    return _mm_loadu_si128((const __m128i *)bytes);
}

/* n <= 16 times `flip`, and zeros: padding stays zero. */
QT_INLINE_AVX2 __m128i qt_flip_bytes__avx2(uint8_t flip, ptrdiff_t n) {
    const __m128i index = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i valid = _mm_cmpgt_epi8(_mm_set1_epi8((char)(n < 16 ? n : 16)), index);
    return _mm_and_si128(valid, _mm_set1_epi8((char)flip));
}

QT_INLINE_AVX2 int32_t qt_sum_lanes__avx2(__m128i v) {
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}

/* Four quads of A, `step` rows x quads apart, as bytes or as int16. */
QT_INLINE_AVX2 void qt_store_quads__avx2(__m128i v, int wide, ptrdiff_t step, uint8_t *d) {
    if (wide) {
        const __m128i lo = _mm_cvtepu8_epi16(v), hi = _mm_cvtepu8_epi16(_mm_unpackhi_epi64(v, v));
        _mm_storel_epi64((__m128i *)d, lo);
        _mm_storeh_pd((double *)(void *)(d + 8 * step), _mm_castsi128_pd(lo));
        _mm_storel_epi64((__m128i *)(d + 16 * step), hi);
        _mm_storeh_pd((double *)(void *)(d + 24 * step), _mm_castsi128_pd(hi));
    } else {
        const int32_t quads[4] = {_mm_cvtsi128_si32(v), _mm_extract_epi32(v, 1), _mm_extract_epi32(v, 2),
                                  _mm_extract_epi32(v, 3)};
        for (int i = 0; i < 4; ++i) memcpy(d + 4 * step * i, &quads[i], 4);
    }
}

QT_INLINE_AVX2 void qt_pack_a__avx2(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride, ptrdiff_t rows,
                                    ptrdiff_t kc, uint8_t flip, int wide, uint8_t *packed, uint32_t *rowsum) {
    enum { MR = 6 };
    const ptrdiff_t size = wide ? 2 : 1, padded = (kc + 3) & ~(ptrdiff_t)3;
    const __m128i ones8 = _mm_set1_epi8(1), ones16 = _mm_set1_epi16(1);
    for (ptrdiff_t i0 = 0; i0 < rows; i0 += MR, packed += MR * padded * size) {
        const ptrdiff_t here = rows - i0 < MR ? rows - i0 : MR;
        const uint8_t *panel = a + i0 * row_stride;
        if (row_stride == 1) { /* lines of rows */
            const __m128i flips = qt_flip_bytes__avx2(flip, here);
            __m128i sum0 = _mm_setzero_si128(), sum1 = sum0, line[4];
            uint8_t *d = packed;
            for (ptrdiff_t k = 0; k < padded; k += 4, d += 4 * MR * size) {
                for (int j = 0; j < 4; ++j) {
                    if (k + j >= kc) line[j] = _mm_setzero_si128();
                    else if (rows - i0 >= 8) /* two rows of the next panel come along */
                        line[j] = _mm_xor_si128(_mm_loadl_epi64((const __m128i *)(panel + (k + j) * k_stride)), flips);
                    else line[j] = _mm_xor_si128(qt_load_bytes__avx2(panel + (k + j) * k_stride, here), flips);
                }
                const __m128i t0 = _mm_unpacklo_epi8(line[0], line[1]), t1 = _mm_unpacklo_epi8(line[2], line[3]);
                const __m128i u0 = _mm_unpacklo_epi16(t0, t1), u1 = _mm_unpackhi_epi16(t0, t1);
                sum0 = _mm_add_epi32(sum0, _mm_madd_epi16(_mm_maddubs_epi16(u0, ones8), ones16));
                sum1 = _mm_add_epi32(sum1, _mm_madd_epi16(_mm_maddubs_epi16(u1, ones8), ones16));
                if (wide) {
                    _mm256_storeu_si256((__m256i *)d, _mm256_cvtepu8_epi16(u0));
                    _mm_storeu_si128((__m128i *)(d + 32), _mm_cvtepu8_epi16(u1));
                } else {
                    _mm_storeu_si128((__m128i *)d, u0);
                    _mm_storel_epi64((__m128i *)(d + 16), u1);
                }
            }
            uint32_t sums[8];
            _mm_storeu_si128((__m128i *)sums, sum0);
            _mm_storeu_si128((__m128i *)(sums + 4), sum1);
            for (ptrdiff_t i = 0; i < here; ++i) rowsum[i0 + i] += sums[i];
            continue;
        }
        if (here < MR) memset(packed, 0, (size_t)(MR * padded * size));
        for (ptrdiff_t i = 0; i < here; ++i) {
            const uint8_t *s = panel + i * row_stride;
            uint8_t *d = packed + 4 * i * size;
            ptrdiff_t k = 0;
            uint32_t sum = 0;
            if (k_stride == 1) {
                const __m128i flips = _mm_set1_epi8((char)flip);
                __m128i sums = _mm_setzero_si128();
                for (; k + 16 <= kc; k += 16, d += 16 * MR * size) {
                    const __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(s + k)), flips);
                    sums = _mm_add_epi32(sums, _mm_sad_epu8(v, _mm_setzero_si128()));
                    qt_store_quads__avx2(v, wide, MR, d);
                }
                sum = (uint32_t)qt_sum_lanes__avx2(sums);
            }
            for (; k < padded; k += 4, d += 4 * MR * size)
                for (ptrdiff_t j = 0; j < 4; ++j) {
                    const uint8_t v = k + j < kc ? (uint8_t)(s[(k + j) * k_stride] ^ flip) : 0;
                    sum += v;
                    d[j * size] = v; /* little-endian */
                    if (wide) d[j * size + 1] = 0;
                }
            rowsum[i0 + i] += sum;
        }
    }
}

static QT_TARGET_AVX2 void qt_pack_a_6c4__avx2(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride,
                                               ptrdiff_t rows, ptrdiff_t kc, uint8_t flip, void *packed,
                                               uint32_t *rowsum) {
    qt_pack_a__avx2(a, row_stride, k_stride, rows, kc, flip, 0, (uint8_t *)packed, rowsum);
}

static QT_TARGET_AVX2 void qt_pack_a_6c4_16__avx2(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride,
                                                  ptrdiff_t rows, ptrdiff_t kc, uint8_t flip, void *packed,
                                                  uint32_t *rowsum) {
    qt_pack_a__avx2(a, row_stride, k_stride, rows, kc, flip, 1, (uint8_t *)packed, rowsum);
}

/* Quads k..stop of one panel of `here` columns, whose lines are contiguous; adds to sums[16]. */
QT_INLINE_AVX2 void qt_pack_b_lines__avx2(const uint8_t *panel, ptrdiff_t k_stride, ptrdiff_t here, ptrdiff_t k,
                                          ptrdiff_t stop, ptrdiff_t kc, uint8_t flip, uint8_t *packed, uint32_t *sums) {
    const __m128i ones8 = _mm_set1_epi8(1), ones16 = _mm_set1_epi16(1), flips = qt_flip_bytes__avx2(flip, here);
    __m128i line[4], quads[4], sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = _mm_loadu_si128((const __m128i *)(sums + 4 * i));
    for (uint8_t *d = packed + 16 * k; k < stop; k += 4, d += 64) {
        for (int j = 0; j < 4; ++j)
            line[j] = k + j >= kc ? _mm_setzero_si128()
                                  : _mm_xor_si128(qt_load_bytes__avx2(panel + (k + j) * k_stride, here), flips);
        const __m128i t0 = _mm_unpacklo_epi8(line[0], line[1]), t1 = _mm_unpacklo_epi8(line[2], line[3]);
        const __m128i t2 = _mm_unpackhi_epi8(line[0], line[1]), t3 = _mm_unpackhi_epi8(line[2], line[3]);
        quads[0] = _mm_unpacklo_epi16(t0, t1), quads[1] = _mm_unpackhi_epi16(t0, t1);
        quads[2] = _mm_unpacklo_epi16(t2, t3), quads[3] = _mm_unpackhi_epi16(t2, t3);
        for (int i = 0; i < 4; ++i) {
            _mm_storeu_si128((__m128i *)(d + 16 * i), quads[i]);
            sum[i] = _mm_add_epi32(sum[i], _mm_madd_epi16(_mm_maddubs_epi16(ones8, quads[i]), ones16));
        }
    }
    for (int i = 0; i < 4; ++i) _mm_storeu_si128((__m128i *)(sums + 4 * i), sum[i]);
}

static QT_TARGET_AVX2 void qt_pack_b_16c4__avx2(const uint8_t *b, ptrdiff_t k_stride, ptrdiff_t col_stride,
                                                ptrdiff_t cols, ptrdiff_t kc, uint8_t flip, void *to,
                                                uint32_t *colsum) {
    enum { NR = 16, GROUP = 128 };
    const ptrdiff_t padded = (kc + 3) & ~(ptrdiff_t)3;
    const __m128i ones8 = _mm_set1_epi8(1), ones16 = _mm_set1_epi16(1);
    uint8_t *packed = (uint8_t *)to;
    if (col_stride == 1) {
        /* 16 lines of up to 128 columns at a time: each cache line and page is used up at once, and the lines fit into
         * the few ways of the cache that a stride of a power of two leaves them */
        for (ptrdiff_t j0 = 0; j0 < cols; j0 += GROUP) {
            const ptrdiff_t group = cols - j0 < GROUP ? cols - j0 : GROUP;
            uint32_t sums[GROUP] = {0};
            for (ptrdiff_t k = 0; k < padded; k += 16) {
                const ptrdiff_t stop = k + 16 < padded ? k + 16 : padded;
                for (ptrdiff_t j = 0; j < group; j += NR) {
                    const uint8_t *panel = b + j0 + j;
                    uint8_t *to_panel = packed + (j0 + j) * padded;
                    if (group - j >= NR) /* a constant: no tests in the loop */
                        qt_pack_b_lines__avx2(panel, k_stride, NR, k, stop, kc, flip, to_panel, sums + j);
                    else qt_pack_b_lines__avx2(panel, k_stride, group - j, k, stop, kc, flip, to_panel, sums + j);
                }
            }
            for (ptrdiff_t j = 0; j < group; ++j) colsum[j0 + j] += sums[j];
        }
        return;
    }
    for (ptrdiff_t j0 = 0; j0 < cols; j0 += NR, packed += NR * padded) {
        const ptrdiff_t here = cols - j0 < NR ? cols - j0 : NR;
        const uint8_t *panel = b + j0 * col_stride;
        if (here < NR) memset(packed, 0, (size_t)(NR * padded));
        for (ptrdiff_t j = 0; j < here; ++j) {
            const uint8_t *s = panel + j * col_stride;
            uint8_t *d = packed + 4 * j;
            ptrdiff_t k = 0;
            int32_t sum = 0;
            if (k_stride == 1) {
                const __m128i flips = _mm_set1_epi8((char)flip);
                __m128i sums = _mm_setzero_si128();
                for (; k + 16 <= kc; k += 16, d += 16 * NR) {
                    const __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(s + k)), flips);
                    sums = _mm_add_epi32(sums, _mm_madd_epi16(_mm_maddubs_epi16(ones8, v), ones16));
                    qt_store_quads__avx2(v, 0, NR, d);
                }
                sum = qt_sum_lanes__avx2(sums);
            }
            for (; k < padded; k += 4, d += 4 * NR)
                for (ptrdiff_t t = 0; t < 4; ++t) {
                    d[t] = k + t < kc ? (uint8_t)(s[(k + t) * k_stride] ^ flip) : 0;
                    sum += (int8_t)d[t];
                }
            colsum[j0 + j] += (uint32_t)sum;
        }
    }
}

#endif
