/* Saturating pairs with the instruction itself: VPMADDUBSW, VPMADDWD with ones, VPADDD.
 *
 * A quad of a row is broadcast, four registers hold 32 columns. Whether a pair saturated cannot be seen from its value
 * (32767 may be exact): it is compared with the same sum modulo 2^16 (VPMULLW of even and of odd bytes, VPADDW). A sum
 * outside int16 is at most 65280 in magnitude, so modulo 2^16 it never equals the bound that it saturates to.
 *
 * A count per 32-bit lane takes 2 for each quad at most: exact for rows of up to 2^32 bytes.
 */
#ifndef QT_SATURATING_AVX2_H
#define QT_SATURATING_AVX2_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#define QT_SAT_TARGET __attribute__((target("avx2")))

/* -1 in each 16-bit lane whose pair did not saturate */
QT_SAT_TARGET static inline __m256i qt_saturating_exact__avx2(__m256i a, __m256i b, __m256i pairs) {
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_mullo_epi16(_mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_cmpeq_epi16(pairs, _mm256_add_epi16(even, odd));
}

QT_SAT_TARGET static void qt_saturating_run__avx2(const uint8_t *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t k,
                                                  const char *panel, const uint8_t *can, int32_t *out, ptrdiff_t ldo,
                                                  ptrdiff_t cols, int64_t *counts) {
    const __m256i ones = _mm256_set1_epi16(1);
    const ptrdiff_t quads = (k + 3) / 4;
    for (ptrdiff_t row = 0; row < rows; ++row, a += lda) {
        __m256i sum[4], found[4];
        for (int i = 0; i < 4; ++i) sum[i] = found[i] = _mm256_setzero_si256();
        for (ptrdiff_t q = 0; q < quads; ++q) {
            const __m256i quad = _mm256_set1_epi32((int32_t)qt_saturating_quad(a, q, k));
            const __m256i *b = (const __m256i *)(const void *)(panel + q * 4 * QT_SATURATING_COLUMNS);
            const int count = counts && can[q];
            for (int i = 0; i < 4; ++i) {
                const __m256i weights = _mm256_loadu_si256(b + i);
                const __m256i pairs = _mm256_maddubs_epi16(quad, weights);
                sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones));
                if (count) {
                    const __m256i more = _mm256_add_epi16(qt_saturating_exact__avx2(quad, weights, pairs), ones);
                    found[i] = _mm256_add_epi32(found[i], _mm256_madd_epi16(more, ones));
                }
            }
        }
        uint32_t lanes[QT_SATURATING_COLUMNS];
        if (out) {
            for (int i = 0; i < 4; ++i) _mm256_storeu_si256((__m256i *)(void *)(lanes + 8 * i), sum[i]);
            memcpy(out + row * ldo, lanes, (size_t)cols * sizeof(int32_t));
        }
        if (counts) {
            for (int i = 0; i < 4; ++i) _mm256_storeu_si256((__m256i *)(void *)(lanes + 8 * i), found[i]);
            for (int c = 0; c < QT_SATURATING_COLUMNS; ++c) counts[c] += lanes[c];
        }
    }
}

static const qt_saturating qt_saturating_rows__avx2 = {
    .name = "rows__avx2", .isa = QT_ISA_AVX2, .run = qt_saturating_run__avx2};

#endif

#endif
