/* Statistics with AVX2: 8 float32 or 16 half-precision elements per instruction, made by the compiler.
 *
 * instructions  vpminsd/vpmaxsd on ordered keys (vpminsw/vpmaxsw for 16 bits), vpcmpeqd + vpsubd to count, vpsravd for
 *               the bins: one shift per lane is what the baseline lacks
 * memory        four streams and a prefetch, as in statistics_avx512vnni.h
 * exactness     integers only; sums of |x| in double, each lane a fixed sequence (statistics_body.h)
 */
#ifndef QT_STATISTICS_AVX2_H
#define QT_STATISTICS_AVX2_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#define QT_STATS(name) name##__avx2
#define QT_STATS_TARGET __attribute__((target("avx2")))
#define QT_STATS_HAS_SCAN_32
#define QT_STATS_NAME "loops__avx2"
#define QT_STATS_ISA QT_ISA_AVX2

typedef struct {
    __m256i top, bottom, zeros; /* zeros counts down */
} qt_scan__avx2;

QT_STATS_TARGET static inline void qt_scan_step__avx2(qt_scan__avx2 *s, const float *x) {
    const __m256i u = _mm256_loadu_si256((const __m256i *)x);
    s->top = _mm256_max_epi32(s->top, u);
    s->bottom = _mm256_max_epu32(s->bottom, u);
    s->zeros = _mm256_add_epi32(s->zeros, _mm256_cmpeq_epi32(_mm256_add_epi32(u, u), _mm256_setzero_si256()));
}

QT_STATS_TARGET static void qt_scan_32__avx2(const float *x, ptrdiff_t n, int32_t *top, uint32_t *bottom,
                                            int32_t *zeros) {
    const ptrdiff_t quarter = n / 64 * 16;
    qt_scan__avx2 a = {_mm256_set1_epi32(INT32_MIN), _mm256_setzero_si256(), _mm256_setzero_si256()}, b = a;
    int32_t tops[8], counts[8], most = INT32_MIN, count = 0;
    uint32_t bottoms[8], least = 0;
    for (ptrdiff_t i = 0; i < quarter; i += 16) {
        for (int s = 0; s < 4; ++s) {
            const float *p = x + s * quarter + i;
            _mm_prefetch((const char *)((uintptr_t)p + QT_STATS_AHEAD), _MM_HINT_T1);
            qt_scan_step__avx2(&a, p);
            qt_scan_step__avx2(&b, p + 8);
        }
    }
    for (ptrdiff_t i = 4 * quarter; i < n; ++i) { /* at most 63 */
        const uint32_t u = qt_bits_of(x[i]);
        count += (u & 0x7FFFFFFF) == 0;
        most = (int32_t)u > most ? (int32_t)u : most;
        least = u > least ? u : least;
    }
    _mm256_storeu_si256((__m256i *)tops, _mm256_max_epi32(a.top, b.top));
    _mm256_storeu_si256((__m256i *)bottoms, _mm256_max_epu32(a.bottom, b.bottom));
    _mm256_storeu_si256((__m256i *)counts, _mm256_add_epi32(a.zeros, b.zeros));
    for (int i = 0; i < 8; ++i) {
        count -= counts[i];
        most = tops[i] > most ? tops[i] : most;
        least = bottoms[i] > least ? bottoms[i] : least;
    }
    *top = most;
    *bottom = least;
    *zeros = count;
}

#include "statistics_body.h"
#undef QT_STATS
#undef QT_STATS_TARGET
#undef QT_STATS_HAS_SCAN_32
#undef QT_STATS_NAME
#undef QT_STATS_ISA

#endif
#endif
